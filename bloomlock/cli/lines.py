"""Lines of files and pipes, as soon as they are there, in batches of what came at once."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .failures import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .signals import Patience

STDIN = "-"
BLOCK_BYTES = 64 * 1024
"""What a pipe of Linux holds."""

MAX_LINE_BYTES = 256 * 1024 * 1024


def check_files(names: Sequence[str]) -> int | None:
    """Check that every file can be read; return how many bytes they hold, None if not known.

    Raises:
        Failure: For the first that cannot.
    """
    total: int | None = 0
    for name in names:
        try:
            found = _check(name)
        except OSError as error:
            raise Failure(f"cannot read {_called(name)}: {error.strerror}") from error
        known = total is not None and stat.S_ISREG(found.st_mode)
        total = total + found.st_size if known and total is not None else None
    return total


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


def read_lines(
    names: Iterable[str],
    most: int,
    patience: Patience,
    *,
    delimiter: bytes = b"\n",
    on_read: Callable[[int], None] = lambda _: None,
) -> Iterator[list[bytes]]:
    """Yield the lines of files, without their ends, in lists of at most `most`.

    What has come from a pipe is yielded before more is waited for. The end of a file ends its
    last line.

    Args:
        names: Files; "-" is standard input.
        most: Lines in one list.
        patience: Notices signals while waiting.
        delimiter: The byte that ends a line.
        on_read: Told how many bytes were read, each time.

    Raises:
        Failure: If a file cannot be read, or a line is longer than 256 MiB.
    """
    for name in names:
        try:
            with _opened(name) as descriptor:
                blocks = _blocks(descriptor, patience, on_read)
                for lines in split(blocks, delimiter):
                    for start in range(0, len(lines), most):
                        yield lines[start : start + most]
        except LineTooLongError as error:
            raise Failure(f"cannot read {_called(name)}: {error}") from error
        except OSError as error:
            raise Failure(f"cannot read {_called(name)}: {error.strerror}") from error


class LineTooLongError(Exception):
    """A line does not fit into memory that may be used for it."""


def split(
    blocks: Iterable[bytes], delimiter: bytes = b"\n", limit: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    r"""Yield for each block the lines that end in it, at last what is left without an end.

    >>> list(split([b"a\nb", b"c\n\nd"]))
    [[b'a'], [b'bc', b''], [b'd']]
    """
    rest = bytearray()
    for block in blocks:
        *lines, tail = block.split(delimiter)
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
    if rest:
        yield [bytes(rest)]


def _blocks(descriptor: int, patience: Patience, on_read: Callable[[int], None]) -> Iterator[bytes]:
    while True:
        patience.wait_readable(descriptor)
        try:
            block = os.read(descriptor, BLOCK_BYTES)
        except BlockingIOError:  # somebody else made the pipe non-blocking, and was faster
            continue
        if not block:
            return
        on_read(len(block))
        yield block


def _called(name: str) -> str:
    return "standard input" if name == STDIN else name


@contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STDIN:
        yield sys.stdin.fileno()
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
