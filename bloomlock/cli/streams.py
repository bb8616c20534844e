"""Bytes in and out: lines of files and pipes in batches, lines to standard output, and signals.

Between the moment a server marks an item as seen and the moment its line is written, an interrupt
would lose the line for every process. So signals are noted, and raised between two batches.
"""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .errors import Failure, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

STDIN = "-"
BLOCK_BYTES = 1024 * 1024
MAX_LINE_BYTES = 256 * 1024 * 1024
_FILE_GONE = select.POLLERR | select.POLLHUP
_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SAMPLES = 256
_SAMPLE_BYTES = 16 * 1024
# Where lines are counted in samples: the sum of that many is hardly ever off by more.
_MARGIN = 1.25

_QUICK_SECONDS = 1.0
_SLOW_SECONDS = 2.0  # a signal is raised between two batches


def check_files(names: Sequence[str]) -> int | None:
    """Refuse a file that cannot be read; return how many bytes they hold, None if not known."""
    total: int | None = 0
    for name in names:
        try:
            found = _check(name)
        except OSError as error:
            raise Failure(f"cannot read {_called(name)}: {error.strerror}") from error
        known = total is not None and stat.S_ISREG(found.st_mode)
        total = total + found.st_size if known and total is not None else None
    return total


def most_lines(names: Sequence[str], delimiter: bytes = b"\n") -> int | None:
    """Return how many lines files hold at most, None if any is a pipe or the like.

    Lines are counted where a file is short, and in samples from all over it where it is long.

    Cost: at most 4 MiB are read of each file.
    """
    total = 0
    for name in names:
        if not stat.S_ISREG(_check(name).st_mode):
            return None
        with _opened(name) as descriptor:
            # Standard input may be a file of which another process has read a part.
            start = os.lseek(descriptor, 0, os.SEEK_CUR)
            total += _most_lines(descriptor, start, os.fstat(descriptor).st_size, delimiter)
    return total


def _called(name: str) -> str:
    return "standard input" if name == STDIN else name


def _check(name: str) -> os.stat_result:
    if name == STDIN:
        if sys.stdin is None:
            raise Failure("standard input is closed")
        return os.fstat(sys.stdin.fileno())
    found = Path(name).stat()
    if stat.S_ISDIR(found.st_mode):
        raise Failure(f"cannot read {name}: it is a directory")
    if stat.S_ISREG(found.st_mode):
        # Opening anything else, a named pipe for one, can be felt at its other end.
        os.close(os.open(name, os.O_RDONLY))
    return found


@contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STDIN:
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Failure(f"cannot read {name}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _most_lines(descriptor: int, start: int, end: int, delimiter: bytes) -> int:
    size = max(0, end - start)
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return _count(descriptor, range(start, end, _SAMPLE_BYTES), delimiter) + 1
    step = (size - _SAMPLE_BYTES) // _SAMPLES
    count = _count(descriptor, range(start, start + _SAMPLES * step, step), delimiter)
    return min(size, math.ceil(_MARGIN * count * size / (_SAMPLES * _SAMPLE_BYTES)) + 1)


def _count(descriptor: int, places: range, delimiter: bytes) -> int:
    return sum(os.pread(descriptor, _SAMPLE_BYTES, place).count(delimiter) for place in places)


class BatchSizer:
    """The size of the next batch.

    It grows while more lines are waiting and answers come quickly: on a server a kill -9 between
    answer and output loses the batch, so the first ones are small.

    Attributes:
        lines: Lines of the next batch at most.
        held_bytes: Bytes that were read since the last batch.

    >>> sizer = BatchSizer(100, 300)
    >>> for count in (99, 100, 200, 300):
    ...     sizer.answered(count, 0.1)
    ...     sizer.lines
    100
    200
    300
    300
    """

    def __init__(self, first: int, most: int, most_bytes: int = 8 * 1024 * 1024) -> None:
        self.lines = first
        self.most = most
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._first = first

    def answered(self, count: int, seconds: float) -> None:
        """Note that a batch of `count` lines took `seconds` to be answered and written."""
        if seconds > _SLOW_SECONDS:
            self.lines = max(self._first, self.lines // 2)
        elif count >= self.lines and seconds < _QUICK_SECONDS:
            self.lines = min(2 * self.lines, self.most)


def read_lines(
    names: Iterable[str],
    sizer: BatchSizer,
    guard: SignalGuard,
    *,
    delimiter: bytes = b"\n",
    on_read: Callable[[int], None] = lambda _: None,
) -> Iterator[Sequence[bytes]]:
    """Yield the lines of files, without their ends, in batches.

    What has come from a pipe is yielded before more is waited for. The end of a file ends its
    last line.
    """

    def count(size: int) -> None:
        sizer.held_bytes += size
        on_read(size)

    for name in names:
        with _opened(name) as descriptor:
            try:
                yield from batches(split(_blocks(descriptor, guard, count), delimiter), sizer)
            except LineTooLongError as error:
                raise Failure(f"cannot read {_called(name)}: {error}") from error
            except OSError as error:
                raise Failure(f"cannot read {_called(name)}: {error.strerror}") from error


class LineTooLongError(Exception):
    """A line is longer than the memory that may be used for it."""


def split(
    blocks: Iterable[bytes], delimiter: bytes = b"\n", limit: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    r"""Yield for each block the lines that end in it, at last what is left without an end.

    An empty block, which says that there is no more at once, yields an empty list.

    >>> list(split([b"a\nb", b"c\n\nd"]))
    [[b'a'], [b'bc', b''], [b'd']]
    """
    rest = bytearray()
    for block in blocks:
        lines = block.split(delimiter)
        tail = lines.pop()
        if lines:
            if rest:
                rest += lines[0]
                lines[0] = bytes(rest)
            rest = bytearray(tail)
            yield lines
        else:
            rest += tail
            if len(rest) > limit:
                raise LineTooLongError(f"a line is longer than {limit} bytes")
            if not block:
                yield []
    if rest:
        yield [bytes(rest)]


def batches(parts: Iterable[list[bytes]], sizer: BatchSizer) -> Iterator[list[bytes]]:
    """Join or cut lines that come in parts to batches of the sizer's size.

    Lines are held back only while more are there at once: an empty part lets them go.
    """
    held: list[bytes] = []
    for part in parts:
        if held:
            held += part
        else:
            held = part
        start = 0
        while len(held) - start >= sizer.lines:
            lines = held[start : start + sizer.lines]
            start += len(lines)
            sizer.held_bytes = 0
            yield lines
        if start:
            del held[:start]
        if held and (not part or sizer.held_bytes >= sizer.most_bytes):
            sizer.held_bytes = 0
            yield held
            held = []
    if held:
        yield held


def _blocks(descriptor: int, guard: SignalGuard, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """Yield what can be read; an empty block where that has to be waited for."""
    while True:
        if not guard.is_readable(descriptor):
            yield b""
        guard.wait_readable(descriptor)
        try:
            block = os.read(descriptor, BLOCK_BYTES)
        except BlockingIOError:  # another process made the pipe non-blocking, and was faster
            continue
        if not block:
            return
        on_read(len(block))
        yield block


class Output:
    """Writes lines to standard output without a buffer of its own."""

    def __init__(self, delimiter: bytes = b"\n") -> None:
        if sys.stdout is None:
            raise Failure("standard output is closed")
        self._descriptor = sys.stdout.fileno()
        self._delimiter = delimiter

    def check(self) -> None:
        """Raise BrokenPipeError if the reader has gone.

        Called before items are marked as seen, so that lines without a reader are not.
        """
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if any(event & _FILE_GONE for _, event in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines and return when the system has all of them; Failure if the disk is full."""
        if not lines:
            return
        left = memoryview(self._delimiter.join([*lines, b""]))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except BrokenPipeError:
                raise
            except OSError as error:
                raise Failure(
                    f"cannot write to standard output: {error.strerror}; lines that are marked as "
                    f"seen and were not written: at most {len(lines)}"
                ) from error


class SignalGuard:
    """Notes the first signal that asks for the end; the second one ends the process at once.

    A context manager for the main thread.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Any] = {}
        # Python calls a handler between two bytecodes, so for a signal that comes just before a
        # blocking call the handler would wait for that to end. The pipe gets its byte at once.
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._wakeup = -1

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in _CAUGHT:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
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
        """Return whether there is something to read, or the end, without waiting."""
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
