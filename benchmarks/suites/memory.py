"""Memory for each item, and false positives by fill."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarks import contenders as c
from benchmarks.jobs import cut, items
from benchmarks.place import Place, connect
from benchmarks.results import Row
from benchmarks.suite import Bench, Part, Suite
from benchmarks.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = 2_000
"""Items that make a bitmap as long as it will ever be."""
CHUNK = 100_000
COUNTS = (10_000, 100_000, 1_000_000, 3_000_000)
RATES = (1e-6, 1e-3)
FILLS = (25, 50, 75, 100, 125, 150, 200)
"""Percent of the capacity."""
FILLED, FILLED_RATE, ASKED = 100_000, 1e-3, 300_000


def bits(bench: Bench) -> Iterator[Row]:
    entries = bench.choose((c.ATOMIC, c.MEMORY, c.BF, c.SADD))
    counts = [bench.items] if bench.items else COUNTS[: 3 if bench.quick else None]
    with connect(bench.url) as client:
        for rate, count, entry in ((r, n, e) for r in RATES for n in counts for e in entries):
            if entry is not c.SADD or rate == RATES[0]:
                table, column = f"bits for each item at {rate:g}", f"{count:,} items"
                row = Row.of("bits", table, entry, column, items=count, rate=rate)
                place = Place(bench.url, "bits", count, rate)
                taken, least = _bits(client, entry, place), -math.log2(rate) / math.log(2)
                row.note(bits=taken, bytes=taken / 8, over=taken / least)
                yield row


def _bits(client: Any, entry: c.Entry, place: Place) -> float:
    """Return the bits that an item takes; a set is filled, others have their size already."""
    made = c.make(entry, place)
    count = place.capacity if entry is c.SADD else min(FIRST, place.capacity)
    for start in range(0, count, CHUNK):
        made.update(items(f"memory {start}", min(CHUNK, count - start)))
    taken = sum(client.memory_usage(key, samples=0) for key in client.scan_iter(count=1000))
    client.flushall()
    return 8 * float(taken) / place.capacity


def fills(bench: Bench) -> Iterator[Row]:
    capacity = bench.count(FILLED)
    asked = items("absent", 3 * bench.items or ASKED)
    with connect(bench.url) as client:
        for entry in bench.choose((c.ATOMIC, c.MEMORY, c.BF)):
            place = Place(bench.url, "fill", capacity, FILLED_RATE)
            made = c.make(entry, place)
            there, done = items("there", 2 * capacity), 0
            for fill in FILLS:
                count = fill * capacity // 100
                for some in cut(there[done:count], CHUNK):
                    made.update(some)
                done = count
                found = sum(sum(made.exists_many(some)) for some in cut(asked, CHUNK))
                kept = sum(sum(made.exists_many(some)) for some in cut(there[:count], CHUNK))
                table = f"false positives of a filter for {capacity:,} at {FILLED_RATE:g}"
                row = Row.of("fills", table, entry, f"{fill} % full", fill=fill)
                row.note(errors=found / len(asked), denied=count - kept)
                yield row
            client.flushall()


BITS = (Column("bits/item", "bits"), Column("bytes/item", "bytes"), Column("/ the least", "over"))
ERRORS = (Column("false positives", "errors"), Column("denied", "denied"))
SUITE = Suite(
    "memory",
    "bits for each item, and false positives by fill",
    (Part("bits", bits, BITS, "bits"), Part("fills", fills, ERRORS, "errors")),
)
