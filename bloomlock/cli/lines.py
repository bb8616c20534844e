"""Lines of files and pipes in, in batches; lines to standard output; and signals in between.

Between the moment a server marks an item as seen and the moment its line is written, an interrupt
would lose the line for every process. So signals are noted, and raised between two batches.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import Failure, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TextIO

    Check = Callable[..., None]

STDIN = "-"
BLOCK_BYTES = 1024 * 1024
LINE_BYTES = 32
"""Of a usual line: so much is read for each line of the largest batch."""
MAX_LINE_BYTES = 256 * 1024 * 1024
FIRST_LINES = 512
"""A kill -9 between answer and output loses a batch on a server, so the first ones are small."""
_FILE_GONE = select.POLLERR | select.POLLHUP
_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.1


@contextmanager
def noted_signals() -> Iterator[Check]:
    """Note the first signal that asks for the end; the second one ends the process at once.

    Yields a function that raises Stopped if one came, with any arguments, as `progress=` has some.
    """
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(number, signal.SIG_DFL)

    def check(*_: int) -> None:
        if noted:
            raise Stopped(noted[0])

    caught = [number for number in _CAUGHT if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in caught}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def count_lines(names: Iterable[str], delimiter: bytes = b"\n") -> int | None:
    """Refuse a file that cannot be read; return how many lines all hold at most.

    That is unknown if one is a pipe or the like.
    """
    lines, is_known = 0, True
    for name in names:
        # Opening a named pipe can be felt at its other end.
        if Path(name).is_fifo():
            is_known = False
            continue
        with _opened(name) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                is_known = False
                continue
            # Standard input may be a file of which another process has read a part.
            start = os.lseek(descriptor, 0, os.SEEK_CUR)
            while block := os.read(descriptor, BLOCK_BYTES):
                lines += block.count(delimiter)
            os.lseek(descriptor, start, os.SEEK_SET)
            lines += 1
    return lines if is_known else None


def read_lines(
    names: Iterable[str], check: Check, most: int, delimiter: bytes = b"\n"
) -> Iterator[list[bytes]]:
    """Yield the lines of files, without their ends; the end of a file ends a line.

    They come in batches, which double from FIRST_LINES to `most`. Lines of a pipe are not held
    back until there are more.
    """
    size = FIRST_LINES
    for name in names:
        # What the consumer of a batch raises is no error of the file, and does not come here.
        with _opened(name) as descriptor:
            rest = bytearray()
            while block := _read_block(descriptor, check, most * LINE_BYTES):
                rest += block
                if delimiter in block:
                    *lines, last = bytes(rest).split(delimiter)
                    rest = bytearray(last)
                    while lines:
                        batch, lines = lines[:size], lines[size:]
                        yield batch
                        if len(batch) == size:
                            size = min(2 * size, most)
                if len(rest) > MAX_LINE_BYTES:
                    raise OSError(errno.EFBIG, f"a line is longer than {MAX_LINE_BYTES} bytes")
            if rest:
                yield [bytes(rest)]


def _read_block(descriptor: int, check: Check, size: int) -> bytes:
    """Wait for bytes, and return what is there by then; empty at the end."""
    block = b""
    while len(block) < size:
        check()
        if not select.select([descriptor], [], [], 0 if block else _LOOK_SECONDS)[0]:
            if block:
                break
            continue
        try:
            more = os.read(descriptor, size)
        except BlockingIOError:  # another process made the pipe non-blocking, and was faster
            continue
        if not more:
            break
        block += more
    return block


@contextmanager
def _opened(name: str) -> Iterator[int]:
    try:
        if name == STDIN:
            yield descriptor_of(sys.stdin, "standard input")
        else:
            with open(name, "rb", buffering=0) as file:  # noqa: PTH123 - the name may be any bytes
                yield file.fileno()
    except OSError as error:
        called = "standard input" if name == STDIN else name
        raise Failure(f"cannot read {called}: {error.strerror}") from error


def descriptor_of(stream: TextIO | None, name: str) -> int:
    if stream is None:
        raise Failure(f"{name} is closed")
    return stream.fileno()


def check_reader(descriptor: int) -> None:
    """Raise BrokenPipeError if the reader has gone.

    Called before items are marked as seen, so that lines without a reader are not.
    """
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(event & _FILE_GONE for _, event in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def write_lines(descriptor: int, lines: Sequence[bytes], delimiter: bytes) -> None:
    """Write lines and return when the system has all of them."""
    left = memoryview(delimiter.join([*lines, b""]))
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failure(
                f"cannot write to standard output: {error.strerror}; lines that are marked as "
                f"seen and were not written: at most {len(lines)}"
            ) from error
