"""Replies that get lost, and the items that are lost with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.jobs import items
from benchmarks.place import Place
from benchmarks.proxies import LossProxy
from benchmarks.results import Row
from benchmarks.suite import Bench, Part, Suite
from benchmarks.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARE = 0.05
ENTRIES = (
    *(
        c.ours(f"{one}-{way}", f'{one}, on_unknown="{way}"', strategy=one, on_unknown=way)
        for one in c.STRATEGIES
        for way in ("new", "raise")
    ),
    c.SADD,
    c.Entry("sadd-once", "SADD, from_url (no retries)", "filters.sadd", {"retries": False}),
)


def measure(bench: Bench) -> Iterator[Row]:
    """Add items through a proxy that loses replies, and look each up afterwards."""
    count = bench.count(10_000, 1_000)
    for entry in bench.choose(ENTRIES):
        row = Row.of("losses", f"{count:,} adds, {SHARE:.0%} of the replies lost", entry)
        raised = lost = twice = 0
        with LossProxy(bench.url, SHARE) as proxy:
            place = Place(proxy.url, f"loss {entry.name}", 2 * count + 1000)
            made = c.make(entry, place)
            proxy.losing = True
            worked_on = []
            for item in items("lossy", count):
                try:
                    if made.add(item):
                        worked_on.append(item)
                    else:
                        lost += 1
                except Exception:  # noqa: BLE001 - whatever a contender raises is its result
                    raised += 1
                    worked_on.append(item)
            proxy.losing = False
            twice = sum(not made.exists(item) for item in worked_on)
        row.note(**proxy.lost, raised=raised, lost=lost, twice=twice)
        yield row


COLUMNS = (
    Column("lost before", "before"),
    Column("lost after", "after"),
    Column("errors", "raised"),
    Column("items lost", "lost"),
    Column("worked on twice", "twice"),
)
SUITE = Suite("losses", "5 % of the replies get lost", (Part("losses", measure, COLUMNS),))
