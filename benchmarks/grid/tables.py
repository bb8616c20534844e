"""The tables of these suites: figures of all contenders, and ours beside each peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import show
from benchmarks.contenders import PING, PING_BYTES, REDIS_BLOOM, SADD
from benchmarks.ratios import ratios, summarize

from .case import WORKLOADS, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

_BASES = {"PING": PING.name, "SADD": SADD.name, "BF": REDIS_BLOOM.name}
_TRIPS = {PING.name, PING_BYTES.name}
_DEFAULTS = {"capacity": 1_000_000, "processes": 1, "round_trip_ms": 0.0}
LARGE = 100.0
PRECISE = 10.0


def rows_of(result: dict[str, Any]) -> list[Row]:
    """Return the rows of a result."""
    return [Row(**row) for row in result["rows"]]


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that can be compared, together; in the order of the first of each."""
    made: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        made.setdefault(row.case, []).append(row)
    return list(made.values())


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make two tables for each case: all figures, and our ratios to each peer."""
    for group in groups(rows_of(result)):
        yield _figures(group, result["missing"])
        compared = _compared(group)
        if compared is not None:
            yield compared


def headline(row: Row) -> str:
    """Say what a row was asked to do."""
    parts = [f"{row.operation}: {WORKLOADS[row.workload]}"]
    if row.operation not in {"add", "exists", "tasks"}:
        parts.append(f"{row.batch:,} in a call")
    if row.tasks:
        parts.append(f"{row.tasks:,} tasks")
    if row.processes > 1:
        parts.append(f"{row.processes} client processes")
    if row.round_trip_ms:
        parts.append(f"round trip {row.round_trip_ms:g} ms")
    parts.append(f"filter for {row.capacity:,} at {row.error_rate:g}")
    return ", ".join(parts)


def _figures(group: list[Row], missing: list[dict[str, str]]) -> Table:
    named = {row.contender: row for row in group}
    bases = {label: named[name] for label, name in _BASES.items() if name in named}
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row.title,
        "items/s": lambda row: f"{summarize(row.rates).median:,.0f}",
        "µs/item (least-most)": _cost,
        "p50 µs": lambda row: number(summarize(row.p50).median),
        "p99 µs": lambda row: number(summarize(row.p99).median),
        "client µs": lambda row: number(summarize(row.client).median),
        "server µs": lambda row: number(summarize(row.server).median),
        "B to": lambda row: number(summarize(row.to_server).median),
        "B from": lambda row: number(summarize(row.from_server).median),
        **{f"/ {label}": _over(base) for label, base in bases.items()},
        "wrong": _wrong,
    }
    lines = [[cell(row) for cell in columns.values()] for row in group]
    absent = [[each["title"], "not available", *[""] * (len(columns) - 2)] for each in missing]
    return show.table(headline(group[0]), columns, lines + absent)


def _over(base: Row) -> Callable[[Row], str]:
    return lambda row: show.ratio(ratios(row.rates, base.rates))


def _cost(row: Row) -> str:
    found = summarize([1e6 / rate for rate in row.rates])
    return f"{number(found.median)} ({number(found.low)}-{number(found.high)})"


def _wrong(row: Row) -> str:
    if row.contender in _TRIPS:
        return ""
    return f"{row.wrong / (row.items * len(row.rates)):.2%}" if row.wrong else "0"


def _compared(group: list[Row]) -> Table | None:
    ours = [row for row in group if row.title.startswith("bloomlock")]
    peers = [row for row in group if not row.title.startswith("bloomlock")]
    if not ours or not peers:
        return None
    lines = [
        [row.title, *(show.ratio(ratios(row.rates, peer.rates)) for peer in peers)] for row in ours
    ]
    title = f"{headline(group[0])}: items/s over each peer's"
    return show.table(title, ["", *(peer.contender for peer in peers)], lines)


def number(value: float) -> str:
    """Write a figure with two or three significant digits."""
    if value >= LARGE:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= PRECISE else f"{value:.2f}"
