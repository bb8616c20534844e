"""The progress bar itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType


class Bar:
    """Counts lines and, where the size of the input is known, shows how much is done.

    Args:
        total: Bytes there are to read; None: not known.
    """

    def __init__(self, total: int | None) -> None:
        """Show nothing yet."""
        columns = [SpinnerColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn()]
        if total is not None:
            columns[1:1] = [BarColumn(), TextColumn("{task.percentage:>3.0f} %")]
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=total, told="")

    def __enter__(self) -> Self:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it away."""
        self._progress.stop()

    def read(self, count: int) -> None:
        """So many bytes were read."""
        self._progress.advance(self._task, count)

    def answered(self, lines: int, new: int | None) -> None:
        """So many lines were answered in all, so many of them new if that was asked."""
        told = f"{lines:,} lines" if new is None else f"{lines:,} lines, {new:,} new"
        self._progress.update(self._task, told=told)
