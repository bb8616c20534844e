"""Memory for each item, beside the least that a Bloom filter can do with.

A Bloom filter for n items at rate p needs n log2(e) log2(1/p) bits if every one of them is as good
as a coin. On a server it is the MEMORY USAGE of all keys, allocator's overhead included. A
set is filled, the others have their size from the beginning or get it with their first items.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, show
from benchmarks.jobs import Job
from benchmarks.place import Place, connect, forget, memory_of, sort_out
from benchmarks.team import assembled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from rich.table import Table

    from benchmarks.contenders import Entry
    from benchmarks.options import Options

ABOUT = "bits for each item"
ENTRIES = (
    contenders.ATOMIC,
    contenders.REDIS_BLOOM,
    contenders.SETBIT,
    contenders.SCRAPY_BLOOM,
    contenders.POTTERY,
    contenders.SADD,
)
CAPACITIES = (100_000, 1_000_000)
RATES = (1e-6, 1e-3)
FIRST = 2_000
"""Items that make a bitmap as long as it will ever be."""
PART = 1_000_000
"""Items that a process makes at a time."""


@dataclass(slots=True)
class Row:
    """Memory of one contender.

    Attributes:
        contender: Its name.
        title: Its title.
        capacity: Items it is for.
        error_rate: Asked for; None for an exact set.
        bits: Bits for each item.
        least: Bits for each item by the formula; None for an exact set.
    """

    contender: str
    title: str
    capacity: int
    error_rate: float | None
    bits: float
    least: float | None


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Make filters of several sizes; return what they take as plain data."""
    wanted = contenders.choose(ENTRIES, options.contenders)
    there, missing = sort_out(wanted, url)
    capacities = (options.items,) if options.items else CAPACITIES
    cases = [(capacity, rate) for capacity in capacities for rate in RATES]
    rows: list[Row] = []
    with connect(url) as client, show.progress(len(cases)) as step:
        for capacity, rate in cases:
            step(f"{capacity:,} at {rate:g}")
            for entry in there:
                if entry is not contenders.SADD or rate == RATES[0]:
                    place = Place(url, f"{prefix}{rate}:{capacity}:", entry.name, capacity, rate)
                    rows.append(row_of(client, entry, place))
                    forget(client, place.prefix)
    return {"missing": missing, "rows": [asdict(row) for row in rows]}


def row_of(client: redis.Redis, entry: Entry, place: Place) -> Row:
    """Make a filter for as many items as the place is for, or a set of them; return its row."""
    exact = entry is contenders.SADD
    count = place.capacity if exact else min(FIRST, place.capacity) // entry.slow
    with assembled([(entry, place)], 1) as (team,):
        for start in range(0, count, PART):
            span = (f"memory {start}", min(PART, count - start))
            team.run([Job("fill", "update" if exact else "add_many", (span,), 10_000)])
        bits = 8 * memory_of(client, place.prefix) / place.capacity
    if exact:
        return Row(entry.name, entry.title, place.capacity, None, round(bits, 3), None)
    least = math.log2(math.e) * math.log2(1 / place.error_rate)
    rate = place.error_rate
    return Row(entry.name, entry.title, place.capacity, rate, round(bits, 3), round(least, 3))


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make the table."""
    rows = [Row(**row) for row in result["rows"]]
    absent = [[each["title"], "not available", "", "", "", ""] for each in result["missing"]]
    columns = ["", "items", "error rate", "bits/item", "formula", "/ formula"]
    yield show.table("memory on the server", columns, [*map(_line, rows), *absent])


def _line(row: Row) -> list[str]:
    return [
        row.title,
        f"{row.capacity:,}",
        f"{row.error_rate:g}" if row.error_rate else "exact",
        f"{row.bits:.2f}",
        f"{row.least:.2f}" if row.least else "",
        f"{row.bits / row.least:.4f}" if row.least else "",
    ]
