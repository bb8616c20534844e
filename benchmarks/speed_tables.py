"""The tables of the speed suite: medians, and ratios within each repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import contenders, show
from .ratios import ratios, summarize
from .speed import ENTRIES, OPERATIONS, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from .jobs import Operation

_ORDER = {entry.name: index for index, entry in enumerate(ENTRIES)}
_ROUND_TRIPS = {contenders.PING.name, contenders.PING_BYTES.name}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make one table for each operation and number of processes."""
    rows = [Row(**row) for row in result["rows"]]
    rows.sort(key=lambda row: (_ORDER[row.contender], row.error_rate or 0.0))
    for processes in result["scale"]["processes"]:
        for operation in OPERATIONS:
            group = [r for r in rows if (r.operation, r.processes) == (operation, processes)]
            if group:
                yield _table(group, operation, processes)


def _table(group: list[Row], operation: Operation, processes: int) -> Table:
    named = {row.contender: row for row in group}
    bases = {
        "SISMEMBER" if operation == "exists" else "SADD": named.get(contenders.SADD.name),
        "PING": named.get(contenders.PING.name),
        "PING bytes": named.get(contenders.PING_BYTES.name),
    }
    return show.table(
        f"{operation}, {processes} client process{'es' if processes > 1 else ''}",
        ["", "items/s", "µs/item", *(f"rate / {label}" for label in bases), "wrong"],
        (_line(row, list(bases.values())) for row in group),
    )


def _line(row: Row, bases: list[Row | None]) -> list[str]:
    rate = summarize(row.rates).median
    wrong = "" if row.contender in _ROUND_TRIPS else f"{row.wrong / row.items:.2%}"
    return [
        row.title if row.error_rate is None else f"{row.title} {row.error_rate:g}",
        f"{rate:,.0f}",
        f"{1e6 / rate:.2f}",
        *("" if base is None else show.ratio(ratios(row.rates, base.rates)) for base in bases),
        wrong,
    ]
