"""KeyboardInterrupt at a chosen point of a call."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import redis

import bloomlock

WHERE = tuple(str(Path(module.__file__).parent) for module in (bloomlock, redis))


class InterruptedAt:
    """Raises KeyboardInterrupt at the n-th point where this thread would take a signal.

    These are the begin of a function and the return from one that is written in C.
    """

    def __init__(self, number):
        self.left = number
        # The interpreter does not keep what it calls alive by itself.
        self._called = self._profile

    def __enter__(self):
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _profile(self, frame, event, _):
        # Python's own locks, within which threads are started, do not survive this.
        if event not in {"call", "c_return"} or not frame.f_code.co_filename.startswith(WHERE):
            return
        self.left -= 1
        # What is raised while an object is deleted is only printed.
        if self.left < 0 and not any(name == "__del__" for name in names_of(frame)):
            sys.setprofile(None)
            raise KeyboardInterrupt


def names_of(frame):
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


def was_in_acquire(error):
    return any(frame.name == "acquire" for frame in traceback.extract_tb(error.__traceback__))
