"""A bar on standard error, where that is a terminal and the lines go elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


class Progress:
    """What is reported about the work; this one shows nothing."""

    def read(self, count: int) -> None:
        """Note that `count` more bytes were read."""

    def answered(self, lines: int, new: int | None) -> None:
        """Note how many lines were answered in all, and how many of them were new if known."""


@contextmanager
def show_progress(
    total: int | None, *, writes: bool = True, what: str = "lines"
) -> Iterator[Progress]:
    """Show a bar while the context lasts, or nothing where it would be in the way.

    `what` names what is counted.
    """
    is_typed = total is None and _is_terminal(sys.stdin)
    is_among_lines = writes and _is_terminal(sys.stdout)
    if is_typed or is_among_lines or not _is_terminal(sys.stderr):
        yield Progress()
    else:
        with _bar(total, what) as bar:
            yield bar


@contextmanager
def _bar(total: int | None, what: str) -> Iterator[Progress]:
    # PLC0415: rich takes a quarter of the time a short command has.
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns: list[progress.ProgressColumn] = [
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
    ]
    if total is not None:
        done = progress.TextColumn("{task.percentage:>3.0f} %")
        columns[1:1] = [progress.BarColumn(), done]
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)

        class Bar(Progress):
            def read(self, count: int) -> None:
                shown.advance(task, count)

            def answered(self, lines: int, new: int | None) -> None:
                text = f"{lines:,} {what}" if new is None else f"{lines:,} {what}, {new:,} new"
                shown.update(task, description=text)

        yield Bar()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
