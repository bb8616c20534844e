"""The tables of the locks suite: medians and spreads."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from . import contenders, show
from .figures import ratios, summarize
from .locks import ENTRIES, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

LARGE = 10.0
THOUSAND = 1000
LEGEND = """\
hand-off: p50/p99 from the call of release to the running of one who had been waiting
trips: reads of the server for each grant; cmds: commands it ran, inside scripts too
Jain: 1 if all got the lock equally often, 1/n if one of n always did"""
_ORDER = {entry.name: index for index, entry in enumerate(ENTRIES)}
_BASES = {
    "2 PING": contenders.PING.name,
    "2 PING bytes": contenders.PING_BYTES.name,
    "redis-py": "redis-py",
}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make a table of locks alone, and one for each crowd and hold time."""
    rows = [Row(**row) for row in result["rows"]]
    rows.sort(key=lambda row: _ORDER[row.contender])
    missing = result["missing"]
    alone = [row for row in rows if not row.clients]
    if alone:
        yield _alone(alone, missing)
    for clients, hold in product(result["scale"]["clients"], result["scale"]["holds"]):
        crowd = [row for row in rows if (row.clients, row.hold) == (clients, hold)]
        if crowd:
            yield _crowd(crowd, missing)
    wrong = [row for row in rows if row.twice or row.errors]
    if wrong:
        yield _wrong(wrong)


def _alone(rows: list[Row], missing: Sequence[str]) -> Table:
    named = {row.contender: row for row in rows}
    bases = {label: named.get(name) for label, name in _BASES.items()}
    columns = ["", "cycles/s", "µs/cycle", *(f"rate / {label}" for label in bases)]
    lines = [_alone_line(row, list(bases.values())) for row in rows]
    return show.table(
        "acquire + release, one client and no other",
        columns,
        lines + [_absent(title, len(columns)) for title in missing],
    )


def _alone_line(row: Row, bases: list[Row | None]) -> list[str]:
    rate = summarize(row.rates).median
    return [
        row.title,
        f"{rate:,.0f}",
        f"{1e6 / rate:.1f}",
        *("" if base is None else show.ratio(ratios(row.rates, base.rates)) for base in bases),
    ]


def _crowd(rows: list[Row], missing: Sequence[str]) -> Table:
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row.title,
        "grants/s": lambda row: _spread(row.rates, _thousands),
        "wait p50": lambda row: _median(row.wait_p50),
        "wait p99 ms": lambda row: _spread(row.wait_p99, _short),
        "hand-off ms": _handoff,
        "trips": lambda row: _median(row.round_trips),
        "cmds": lambda row: _median(row.commands),
        "Jain": lambda row: f"{summarize(row.jain).median:.3f}",
    }
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    clients, hold = rows[0].clients, rows[0].hold
    made = show.table(
        f"{clients} client{'s' if clients > 1 else ''} on one lock, held {hold:g} ms",
        columns,
        lines + [_absent(title, len(columns)) for title in missing],
    )
    made.caption, made.caption_justify = LEGEND, "left"
    return made


def _median(values: Sequence[float]) -> str:
    return _short(summarize(values).median)


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    found = summarize(values)
    return f"{form(found.median)} ({form(found.low)}-{form(found.high)})"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < LARGE else f"{value:,.0f}"


def _thousands(value: float) -> str:
    return f"{value / THOUSAND:.1f}k" if value >= THOUSAND else f"{value:.0f}"


def _handoff(row: Row) -> str:
    if not any(row.handed):
        return "-"
    return f"{_median(row.handoff_p50)}/{_median(row.handoff_p99)}"


def _wrong(rows: list[Row]) -> Table:
    return show.table(
        "what went wrong",
        ["", "clients", "held ms", "grants while held", "errors"],
        (
            [row.title, f"{row.clients}", f"{row.hold:g}", f"{row.twice}", _errors(row)]
            for row in rows
        ),
    )


def _errors(row: Row) -> str:
    return ", ".join(f"{count} {name}" for name, count in row.errors.items()) or "none"


def _absent(title: str, columns: int) -> list[str]:
    return [title, "not installed", *[""] * (columns - 2)]
