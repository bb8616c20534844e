"""Tables and JSON, and numbers and names as they stand there."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO


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
    click.echo(table_text(rows, head, left))


def table_text(rows: Iterable[Sequence[str]], head: Sequence[str], left: int) -> str:
    """Write a table; the columns from the `left`-th on are numbers and stand at the right."""
    filled = [[printable(cell) for cell in row] for row in ([head] if head else []) + [*rows]]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    places = [("<" if index < left else ">") + str(width) for index, width in enumerate(widths)]
    lines = (map(format, row, places) for row in filled)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def text_of(item: object) -> str:
    return item.decode(errors="backslashreplace") if isinstance(item, bytes) else str(item)


def printable(text: str) -> str:
    r"""Return a text that does nothing to a terminal.

    >>> printable("a\x1b[2J")
    'a?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def is_terminal(stream: TextIO | None) -> bool:
    # None: it was closed before the command began.
    return stream is not None and stream.isatty()


def shown(name: str) -> str:
    """Return a name as it is, but at a terminal one that does nothing to it."""
    return printable(name) if is_terminal(sys.stdout) else name


def size_text(number: float) -> str:
    # rich takes a quarter of the time of a short command.
    from rich.filesize import decimal  # noqa: PLC0415

    return decimal(int(number))
