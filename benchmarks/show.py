"""Tables and progress on the terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .figures import Summary

LARGE = 10.0
WIDTH = 210
"""Columns of the widest table; on a narrower terminal it wraps, but no figure is cut."""


def console() -> Console:
    """Return where results go."""
    made = Console(highlight=False)
    made.width = max(made.width, WIDTH) if made.is_terminal else WIDTH
    return made


def header(machine: dict[str, Any], versions: dict[str, str]) -> str:
    """Return machine and versions in three lines."""
    server, python, *packages = versions.items()
    return (
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load']} at the start, "
        f"{machine['system']}\n{server[1]}, {python[1]}\n"
        + ", ".join(f"{name} {number}" for name, number in packages)
    )


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table whose first column is text and all others are figures."""
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def ratio(summary: Summary) -> str:
    """Return median and spread of ratios."""
    return f"{_short(summary.median)} ({_short(summary.low)}-{_short(summary.high)})"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < LARGE else f"{value:.0f}"


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on standard error where that is a terminal."""
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("starting", total=total)
        done = 0

        def step(what: str) -> None:
            nonlocal done
            bar.update(task, description=what, completed=done)
            done += 1

        yield step
