"""Ctrl-C and its like, between two batches and never inside of one.

Between the moment a server marks an item as seen and the moment its line is written, an interrupt
would lose the line for everybody. So signals are only noted, and looked at where nothing is lost.
"""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, Any, Self

from .failures import Stopped

if TYPE_CHECKING:
    from types import FrameType, TracebackType

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalGuard:
    """Notes the first signal that asks for the end; the second one ends the process at once.

    A context manager for the main thread.
    """

    def __init__(self) -> None:
        """Note nothing yet."""
        self._noted: int | None = None
        self._before: dict[int, Any] = {}
        # Python hands a signal to its handler between two bytecodes, so one that comes just before
        # a blocking call would wait for that to end. The pipe is told by the signal itself.
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._wakeup = -1

    def __enter__(self) -> Self:
        """Begin to catch; what is ignored (nohup, a background job) stays ignored."""
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in CAUGHT:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave everything as it was."""
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read_end)
        os.close(self._write_end)

    def check(self) -> None:
        """Raise Stopped if a signal came."""
        if self._noted is not None:
            raise Stopped(self._noted)

    def is_readable(self, descriptor: int) -> bool:
        """Tell whether there is something to read, or the end, without waiting."""
        return bool(select.select([descriptor], [], [], 0)[0])

    def wait_readable(self, descriptor: int) -> None:
        """Wait until there is something to read, or raise Stopped when a signal comes."""
        while True:
            self.check()
            ready, _, _ = select.select([descriptor, self._read_end], [], [])
            if self._read_end in ready:
                numbers = os.read(self._read_end, 64)
                self._noted = next((n for n in numbers if n in self._before), self._noted)
            elif descriptor in ready:
                return

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler
        self._noted = number
        signal.signal(number, signal.SIG_DFL)
