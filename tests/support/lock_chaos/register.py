"""The thing that a lock protects: a number in a file, guarded by the fence of who writes."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMAT = struct.Struct("<qqq")


class State(NamedTuple):
    """What the file holds: the number, how often it was written, the highest fence seen."""

    value: int = 0
    writes: int = 0
    fence: int = 0


class Register:
    """Read and write it under a fence, as a store that knows about fences would allow.

    Whoever reads raises the bar; whoever writes with a lower fence is refused. Without a fence
    everybody may write, and a number written by two that read the same one shows it: `value` is
    then below `writes`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @contextmanager
    def _open(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def state(self) -> State:
        with self._open() as file:
            return self._load(file)

    def read(self, fence: int | None) -> int | None:
        """Return the number, or None if a higher fence has been here."""
        with self._open() as file:
            state = self._load(file)
            if fence is not None:
                if fence < state.fence:
                    return None
                self._store(file, state._replace(fence=fence))
            return state.value

    def write(self, fence: int | None, value: int) -> bool:
        """Set the number, unless a higher fence has been here."""
        with self._open() as file:
            state = self._load(file)
            if fence is not None and fence < state.fence:
                return False
            self._store(file, State(value, state.writes + 1, state.fence))
            return True

    @staticmethod
    def _load(file: int) -> State:
        data = os.pread(file, _FORMAT.size, 0)
        return State(*_FORMAT.unpack(data)) if data else State()

    @staticmethod
    def _store(file: int, state: State) -> None:
        # One write of a few bytes: a process killed around it leaves the old or the new.
        os.pwrite(file, _FORMAT.pack(*state), 0)
