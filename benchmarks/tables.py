"""The tables of suites that the engine measures: all figures in full, and few for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import show
from .contenders import PING, PING_BYTES, REDIS_BLOOM, SADD
from .engine import WORKLOADS, Row
from .figures import ratios, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

_BASES = {"PING": PING.name, "SADD": SADD.name, "BF": REDIS_BLOOM.name}
_TRIPS = {PING.name, PING_BYTES.name}
_USUAL = ("1 client process", "unix socket")
_OVERVIEW_BASES = (SADD.name, "async-sadd", REDIS_BLOOM.name, PING.name, "set")
LARGE = 100.0
PRECISE = 10.0


def groups(result: dict[str, Any]) -> list[list[Row]]:
    """Return the rows that can be compared, together; in the order of the first of each."""
    made: dict[tuple[object, ...], list[Row]] = {}
    for row in (Row(**plain) for plain in result["rows"]):
        made.setdefault(row.case, []).append(row)
    return list(made.values())


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make two tables for each case: all figures, and our ratios to each peer."""
    for group in groups(result):
        yield _figures(group, result["missing"])
        compared = _compared(group)
        if compared is not None:
            yield compared


def overview(result: dict[str, Any]) -> Iterator[Table]:
    """Make few tables: a line for each contender, a column for each case.

    One of a kind has the median rate over that of the column's base, the other the microseconds of
    the server's and of the clients' processors for an item: what a busy machine pays.
    """
    kinds: dict[tuple[str, str, float, str], list[list[Row]]] = {}
    for group in sorted(groups(result), key=lambda group: (group[0].batch, group[0].capacity)):
        first = group[0]
        kind = (first.operation, first.workload, first.error_rate, first.site)
        kinds.setdefault(kind, []).append(group)
    alone = [cases[0] for cases in kinds.values() if len(cases) == 1]
    for cases in (*filter(None, [alone]), *(cases for cases in kinds.values() if len(cases) > 1)):
        yield _overview(cases, "rate", _rate)
        yield _overview(cases, "µs of server + client processor for an item", _busy)


def _overview(cases: list[list[Row]], what: str, cell: Callable[[Row, Row], str]) -> Table:
    columns = [{row.contender: row for row in group} for group in cases]
    titles = {row.contender: row.title for group in cases for row in group}
    bases = [_base(column) for column in columns]
    lines = [
        [
            title,
            *(
                cell(column[name], base) if name in column else ""
                for column, base in zip(columns, bases, strict=True)
            ),
        ]
        for name, title in titles.items()
    ]
    words = [_words(group[0]) for group in cases]
    shared = [part for part in words[0] if all(part in other for other in words)]
    heads = [", ".join(part for part in parts if part not in shared) or what for parts in words]
    title = ", ".join(part for part in shared if part not in _USUAL)
    return show.table(f"{title}: {what}" if title else what, ["", *heads], lines)


def _base(column: dict[str, Row]) -> Row:
    """Return what a column is compared with: the first of the usual peers that is in it."""
    return next(
        (column[name] for name in _OVERVIEW_BASES if name in column), next(iter(column.values()))
    )


def _rate(row: Row, base: Row) -> str:
    return number(ratios(row.rates, base.rates).median)


def _busy(row: Row, _base: Row) -> str:
    return f"{number(summarize(row.server).median)} + {number(summarize(row.client).median)}"


def headline(row: Row) -> str:
    """Return what a row measures, in words."""
    return ", ".join(words for words in _words(row) if words not in _USUAL)


def _words(row: Row) -> list[str]:
    parts = [f"{row.operation}: {WORKLOADS[row.workload]}{row.site and f' of {row.site}'}"]
    if row.operation not in {"add", "exists", "tasks"}:
        parts.append(f"{row.batch:,} in a call")
    if row.tasks:
        parts.append(_count(row.tasks, "task"))
    parts.append(_count(row.processes, "client process", "es"))
    parts.append(f"round trip {row.round_trip_ms:g} ms" if row.round_trip_ms else "unix socket")
    parts.append(f"filter for {row.capacity:,} at {row.error_rate:g}")
    return parts


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{plural if number > 1 else ''}"


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
