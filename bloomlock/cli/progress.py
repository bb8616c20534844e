"""A bar on standard error, where that is a terminal and the lines go elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from .errors import Stopped, warn
from .lines import SignalGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress_bar(
    total: int | None, *, writes: bool = False, hidden: bool = False
) -> Iterator[Callable[[int, str], object]]:
    """Yield a function that shows how much is done, of `total` if that is known, and a text.

    Nothing is shown where a bar would stand between lines that are typed or written.
    """
    is_typed = total is None and _is_terminal(sys.stdin)
    is_among_lines = writes and _is_terminal(sys.stdout)
    if hidden or is_typed or is_among_lines or not _is_terminal(sys.stderr):
        yield lambda _done, _text: None
        return
    # PLC0415: rich takes a quarter of the time a short command has.
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns: list[progress.ProgressColumn] = [
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
    ]
    if total is not None:
        columns[1:1] = [progress.BarColumn(), progress.TaskProgressColumn()]
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)


@contextmanager
def moving_bytes(total: int | None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function for `progress=`, which shows a bar; a signal ends the work between parts."""
    with SignalGuard() as guard, progress_bar(total) as show:

        def moved(done: int, _all: int) -> None:
            guard.check()
            show(done, f"{done:,} bytes")

        try:
            yield moved
            guard.check()
        except Stopped:
            warn("interrupted; nothing is left of it: run the same command again")
            raise


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
