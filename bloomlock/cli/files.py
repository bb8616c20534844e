"""Files that are given by name: whether they can be read, and how many lines they may hold."""

from __future__ import annotations

import math
import os
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDIN = "-"

SAMPLES = 256
SAMPLE_BYTES = 16 * 1024
MARGIN = 1.25
"""Where lines are counted in samples: the sum of so many is hardly ever off by more."""


def called(name: str) -> str:
    """Return what a file is called in a sentence."""
    return "standard input" if name == STDIN else name


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
            raise Failure(f"cannot read {called(name)}: {error.strerror}") from error
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


@contextmanager
def opened(name: str) -> Iterator[int]:
    """Open a file, or take standard input, while the context lasts.

    Raises:
        Failure: If it cannot be opened.
    """
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


def most_lines(names: Sequence[str], delimiter: bytes = b"\n") -> int | None:
    """Return how many lines files hold at most, None if any is a pipe or the like.

    Lines are counted where a file is short, and in samples from all over it where it is long.

    Cost: at most 4 MiB are read of each file.
    """
    total = 0
    for name in names:
        if not stat.S_ISREG(_check(name).st_mode):
            return None
        with opened(name) as descriptor:
            # Standard input may be a file that somebody has read a part of.
            start = os.lseek(descriptor, 0, os.SEEK_CUR)
            total += _most_lines(descriptor, start, os.fstat(descriptor).st_size, delimiter)
    return total


def _most_lines(descriptor: int, start: int, end: int, delimiter: bytes) -> int:
    size = max(0, end - start)
    if size <= SAMPLES * SAMPLE_BYTES:
        return _count(descriptor, range(start, end, SAMPLE_BYTES), delimiter) + 1
    step = (size - SAMPLE_BYTES) // SAMPLES
    count = _count(descriptor, range(start, start + SAMPLES * step, step), delimiter)
    return min(size, math.ceil(MARGIN * count * size / (SAMPLES * SAMPLE_BYTES)) + 1)


def _count(descriptor: int, places: range, delimiter: bytes) -> int:
    return sum(os.pread(descriptor, SAMPLE_BYTES, place).count(delimiter) for place in places)
