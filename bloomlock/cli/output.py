"""Tables and JSON, and numbers and names as they stand there.

rich takes a quarter of the time of a short command, so it is imported where it is used.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

_WIDE = 10_000
"""Columns of what is no terminal: no cell is cut there, and no line is broken."""


def print_json(value: object) -> None:
    """Write JSON; items are texts there, and times are seconds."""

    def form(one: object) -> object:
        return one.total_seconds() if isinstance(one, timedelta) else text_of(one)

    click.echo(json.dumps(value, indent=2, default=form))


def print_fields(fields: Mapping[str, Any]) -> None:
    """Write names and values, one a line; what is None or empty is left out."""

    def text(name: str, value: object) -> str:
        if name.endswith("bytes") and isinstance(value, (int, float)):
            return size_text(value)
        if name.endswith("_s") and isinstance(value, float):
            return f"{value * 1e6:.1f} us" if value < 1 else str(timedelta(seconds=value))
        return f"{value:.3g}" if isinstance(value, float) else f"{value}"

    filled = {name: value for name, value in fields.items() if value not in {None, ""}}
    print_table((name.replace("_", " "), text(name, value)) for name, value in filled.items())


def print_table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), left: int = 99) -> None:
    """Write rows; the columns from the `left`-th on are numbers and stand at the right."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    Console(width=width, highlight=False).print(table_of(rows, head, left))


def table_of(rows: Iterable[Sequence[str]], head: Sequence[str], left: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0))
    filled = [*rows]
    for index, title in enumerate(head or [""] * len(filled[0])):
        table.add_column(title, justify="left" if index < left else "right", no_wrap=True)
    for row in filled:
        # As text: what looks like markup is not, and nothing is done to a terminal.
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def text_of(item: object) -> str:
    return item.decode(errors="backslashreplace") if isinstance(item, bytes) else str(item)


def printable(text: str) -> str:
    r"""Return a text that does nothing to a terminal.

    >>> printable("a\x1b[2J")
    'a?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(name: str) -> str:
    """Return a name as it is, but at a terminal one that does nothing to it."""
    return printable(name) if sys.stdout.isatty() else name


def size_text(number: float) -> str:
    from rich.filesize import decimal

    return decimal(int(number))
