"""Lines of files and pipes, as soon as they are there, in batches of what came at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .failures import Failure
from .files import called, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .pace import BatchSizer
    from .signals import SignalGuard

BLOCK_BYTES = 1024 * 1024
MAX_LINE_BYTES = 256 * 1024 * 1024


def read_lines(
    names: Iterable[str],
    pace: BatchSizer,
    patience: SignalGuard,
    *,
    delimiter: bytes = b"\n",
    on_read: Callable[[int], None] = lambda _: None,
) -> Iterator[Sequence[bytes]]:
    """Yield the lines of files, without their ends, in batches.

    What has come from a pipe is yielded before more is waited for. The end of a file ends its
    last line.

    Args:
        names: Files; "-" is standard input.
        pace: Says how large a batch may be.
        patience: Notices signals while waiting.
        delimiter: The byte that ends a line.
        on_read: Told how many bytes were read, each time.

    Raises:
        Failure: If a file cannot be read, or a line is longer than 256 MiB.
    """
    for name in names:
        with opened(name) as descriptor:
            yield from read_file(
                descriptor, name, pace, patience, delimiter=delimiter, on_read=on_read
            )


def read_file(
    descriptor: int,
    name: str,
    pace: BatchSizer,
    patience: SignalGuard,
    *,
    delimiter: bytes,
    on_read: Callable[[int], None],
) -> Iterator[Sequence[bytes]]:
    """Yield the lines of one open file from where it stands, as read_lines."""

    def count(size: int) -> None:
        pace.held_bytes += size
        on_read(size)

    try:
        yield from batches(split(_blocks(descriptor, patience, count), delimiter), pace)
    except LineTooLongError as error:
        raise Failure(f"cannot read {called(name)}: {error}") from error
    except OSError as error:
        raise Failure(f"cannot read {called(name)}: {error.strerror}") from error


class LineTooLongError(Exception):
    """A line does not fit into memory that may be used for it."""


def split(
    blocks: Iterable[bytes], delimiter: bytes = b"\n", limit: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    r"""Yield for each block the lines that end in it, at last what is left without an end.

    For an empty block, which says that there is no more at once, an empty list.

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


def batches(parts: Iterable[list[bytes]], pace: BatchSizer) -> Iterator[list[bytes]]:
    """Put lines that come in parts together, or apart, to batches of the size that the pace says.

    Lines are held back only while more are there at once: an empty part lets them go.
    """
    held: list[bytes] = []
    for part in parts:
        if held:
            held += part
        else:
            held = part
        start = 0
        while len(held) - start >= pace.lines:
            lines = held[start : start + pace.lines]
            start += len(lines)
            pace.held_bytes = 0
            yield lines
        if start:
            del held[:start]
        if held and (not part or pace.held_bytes >= pace.most_bytes):
            pace.held_bytes = 0
            yield held
            held = []
    if held:
        yield held


def _blocks(
    descriptor: int, patience: SignalGuard, on_read: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield what can be read; nothing, where that has to be waited for."""
    while True:
        if not patience.is_readable(descriptor):
            yield b""
        patience.wait_readable(descriptor)
        try:
            block = os.read(descriptor, BLOCK_BYTES)
        except BlockingIOError:  # somebody else made the pipe non-blocking, and was faster
            continue
        if not block:
            return
        on_read(len(block))
        yield block
