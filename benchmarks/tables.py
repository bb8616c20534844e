"""Tables of rows: on the terminal every figure, on the page the ratios."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .results import Row

LARGE, PRECISE = 100.0, 10.0
BASES = ("exact", "lock-sadd", "sadd", "async-sadd", "set", "plain", "redis-py", "bf", "in-memory")
"""What rates are compared with: the first of these that is in a column."""

Form = Literal["median", "spread", "sum", "percent", "max"]


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


class Column(NamedTuple):
    head: str
    figure: str  # what it shows of a row
    over: str = ""  # the contender whose figure it is divided by
    form: Form = "median"  # of all repetitions; "spread" has the least and the most too


FULL = (
    Column("items/s", "rate"),
    Column("/ SADD", "rate", "sadd", "spread"),
    Column("/ BF", "rate", "bf", "spread"),
    Column("p50 µs", "p50"),
    Column("p99 µs", "p99"),
    Column("server µs", "server"),
    Column("client µs", "client"),
    Column("round trips", "trips"),
    Column("B to", "to"),
    Column("B from", "from"),
    Column("wrong", "wrong", form="sum"),
)
"""All figures of the cases that the engine measures."""


def plain(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[Table]:
    """Make a table for each table and column of rows, with a line for each contender."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row.table, row.column), {})[row.name] = row
    for (table, column), named in groups.items():
        shown = [
            each
            for each in columns
            if any(each.figure in row.figures for row in named.values())
            and (not each.over or each.over in named)
        ]
        lines = [
            [row.title, *(_cell(row, each, named) for each in shown)] for row in named.values()
        ]
        title = f"{table}, {column}" if column else table
        yield Table(title, ["", *(each.head for each in shown)], lines)


def pivot(rows: Sequence[Row], figure: str) -> Iterator[Table]:
    """Make a table for each table of rows: a line for each contender, a column for each case.

    A cell is the median. Of "rate" it is the median ratio to the column's base, and the server's
    microseconds.
    """
    for title in dict.fromkeys(row.table for row in rows):
        mine = [row for row in rows if row.table == title]
        columns = {row.column: [one for one in mine if one.column == row.column] for row in mine}
        lines = [
            [text, *(_found(name, column, figure) for column in columns.values())]
            for name, text in {row.name: row.title for row in mine}.items()
        ]
        yield Table(title, ["", *columns], lines)


def _found(name: str, column: Sequence[Row], figure: str) -> str:
    named = {row.name: row for row in column}
    row = named.get(name)
    if row is None:
        return ""
    if figure != "rate":
        return number(row.median(figure) or 0)
    base = next((named[each] for each in BASES if each in named), column[0])
    server = row.median("server")
    return number(median(row.over(base, "rate"))) + (f" ({number(server)})" if server else "")


def _cell(row: Row, column: Column, named: dict[str, Row]) -> str:
    values = row.figures.get(column.figure, [])
    if column.over:
        values = row.over(named[column.over], column.figure)
    if not values:
        return ""
    match column.form:
        case "sum":
            return f"{sum(values):,.0f}"
        case "max":
            return number(max(values))
        case "percent":
            return f"{median(values):.1%}"
        case "spread":
            return spread(values)
        case _:
            return number(median(values))


def spread(values: Sequence[float]) -> str:
    """Write the median, and the least and the greatest."""
    middle, least, most = map(number, (median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least}-{most})"


def number(value: float) -> str:
    """Write a figure with two or three significant digits.

    >>> number(0.0), number(0.00123), number(2.0), number(12.34), number(1234.5)
    ('0', '0.0012', '2.00', '12.3', '1,234')
    """
    if value >= LARGE:
        return f"{value:,.0f}"
    if value >= PRECISE:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 / PRECISE else f"{value:.2g}"


def text(table: Table) -> str:
    """Write a table in Markdown, its columns aligned."""
    cells = [list(table.columns), ["---", *["--:"] * (len(table.columns) - 1)], *table.lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        [cell.rjust(width) if index else cell.ljust(width) for index, (cell, width) in pairs]
        for pairs in (enumerate(zip(line, widths, strict=True)) for line in cells)
    ]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{body}\n"
