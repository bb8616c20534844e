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
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .errors import Failure, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

STDIN = "-"
BLOCK_BYTES = 1024 * 1024
MAX_LINE_BYTES = 256 * BLOCK_BYTES
MOST_BLOCKS = 8
"""Blocks whose lines are held back for one batch."""
_FILE_GONE = select.POLLERR | select.POLLHUP
_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.5

_SAMPLES = 256
_SAMPLE_BYTES = 16 * 1024
# Where lines are counted in samples: the sum of that many is hardly ever off by more.
_MARGIN = 1.25


def measure(names: Iterable[str], delimiter: bytes = b"\n") -> tuple[int, int] | tuple[None, None]:
    """Refuse a file that cannot be read; return what all hold: bytes, and lines at most.

    Neither is known if one of them is a pipe or the like. Lines are counted where a file is short,
    and in samples from all over it where it is long.
    """
    num_bytes, lines, is_known = 0, 0, True
    for name in names:
        with _explained(name):
            mode = os.fstat(_stdin()).st_mode if name == STDIN else Path(name).stat().st_mode
            if stat.S_ISDIR(mode):
                raise Failure(f"cannot read {name}: it is a directory")
            # Opening anything else, a named pipe for one, can be felt at its other end.
            if not stat.S_ISREG(mode):
                is_known = False
                continue
            with _opened(name) as descriptor:
                # Standard input may be a file of which another process has read a part.
                start = os.lseek(descriptor, 0, os.SEEK_CUR)
                size = max(0, os.fstat(descriptor).st_size - start)
                step = max(_SAMPLE_BYTES, size // _SAMPLES)
                found = sum(
                    os.pread(descriptor, _SAMPLE_BYTES, place).count(delimiter)
                    for place in range(start, start + size, step)
                )
                margin = _MARGIN if step > _SAMPLE_BYTES else 1
                lines += min(size, math.ceil(margin * found * step / _SAMPLE_BYTES) + 1)
                num_bytes += size
    return (num_bytes, lines) if is_known else (None, None)


def _stdin() -> int:
    if sys.stdin is None:
        raise Failure("standard input is closed")
    return sys.stdin.fileno()


@contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STDIN:
        yield _stdin()
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        called = "standard input" if name == STDIN else name
        raise Failure(f"cannot read {called}: {error.strerror}") from error


class BatchSizes(NamedTuple):
    """Lines of the first batch, and of the largest.

    A kill -9 between answer and output loses a batch on a server, so the first ones are small.
    """

    first: int
    most: int


def read_lines(
    names: Iterable[str],
    sizes: BatchSizes,
    guard: SignalGuard,
    *,
    delimiter: bytes = b"\n",
    on_read: Callable[[int], None] = lambda _: None,
) -> Iterator[list[bytes]]:
    """Yield the lines of files, without their ends, in batches; the end of a file ends a line."""

    def blocks(descriptor: int) -> Iterator[bytes]:
        while True:
            if not select.select([descriptor], [], [], 0)[0]:
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

    for name in names:
        # What the consumer of a batch raises is no error of the file, and does not come here.
        with _explained(name), _opened(name) as descriptor:
            yield from batches(blocks(descriptor), sizes, delimiter)


def batches(
    blocks: Iterable[bytes],
    sizes: BatchSizes,
    delimiter: bytes = b"\n",
    limit: int = MAX_LINE_BYTES,
) -> Iterator[list[bytes]]:
    """Yield the lines of blocks in batches, which double from the first to the most.

    An empty block says that there is no more at once: what is held back is yielded. So it is after
    MOST_BLOCKS, and at the end of a line that is longer than a block.
    """
    size = sizes.first
    held: list[bytes] = []
    rest = bytearray()
    num_blocks = 0
    for block in chain(blocks, [None]):
        num_blocks += 1
        is_flushed = not block or num_blocks >= MOST_BLOCKS
        if block is None and rest:
            held.append(bytes(rest))
        elif block:
            rest += block
            if delimiter in block:
                lines = bytes(rest).split(delimiter)
                rest = bytearray(lines.pop())
                is_flushed |= len(lines[0]) > BLOCK_BYTES
                held += lines
            if max(len(rest), len(held[0]) if held else 0) > limit:
                raise LineTooLongError(errno.EFBIG, f"a line is longer than {limit} bytes")
        start = 0
        while start < len(held) and (is_flushed or len(held) - start >= size):
            batch = held[start : start + size]
            yield batch
            start += len(batch)
            num_blocks = 0
            if len(batch) == size:
                size = min(2 * size, sizes.most)
        held = held[start:]


class LineTooLongError(OSError): ...


class Output:
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
        left = memoryview(self._delimiter.join([*lines, b""])) if lines else memoryview(b"")
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
        self._is_waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _CAUGHT:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def check(self) -> None:
        if self._noted is not None:
            raise Stopped(self._noted)

    def wait_readable(self, descriptor: int) -> None:
        """Wait until there is something to read, or the end; Stopped when a signal comes."""
        self._is_waiting = True
        try:
            self.check()
            # Python runs a handler between two bytecodes. After a signal that comes right before
            # the system call, that is at its time-out.
            while not select.select([descriptor], [], [], _LOOK_SECONDS)[0]:
                pass
        finally:
            self._is_waiting = False

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler
        self._noted = number
        signal.signal(number, signal.SIG_DFL)
        if self._is_waiting:
            raise Stopped(number)
