"""A bar on standard error, where that is a terminal and the lines go elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


class Progress(Protocol):
    """What is told about the work."""

    def read(self, count: int) -> None:
        """So many bytes were read."""

    def answered(self, lines: int, new: int | None) -> None:
        """So many lines were answered in all, so many of them new if that was asked."""


class NullProgress:
    """Shows nothing."""

    def read(self, count: int) -> None:
        """See Progress."""

    def answered(self, lines: int, new: int | None) -> None:
        """See Progress."""


@contextmanager
def show_progress(total: int | None, *, writes: bool = True) -> Iterator[Progress]:
    """Show a bar while the context lasts, or nothing where nobody would see it well.

    Args:
        total: Bytes there are to read; None: not known.
        writes: Whether lines are written meanwhile, among which a bar would stand.
    """
    typing = total is None and _is_terminal(sys.stdin)
    among_lines = writes and _is_terminal(sys.stdout)
    if typing or among_lines or not _is_terminal(sys.stderr):
        yield NullProgress()
        return
    from .bar import Bar  # noqa: PLC0415 - rich takes a quarter of the time a short command has

    with Bar(total) as bar:
        yield bar


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
