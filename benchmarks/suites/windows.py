"""What is counted of windows, discards and growth: bits, bytes, wipes and errors."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from benchmarks import contenders as c
from benchmarks.place import Meter, Place, connect, forget, memory_of
from benchmarks.results import Row
from benchmarks.suite import Bench, Part
from benchmarks.tables import Column
from benchmarks.workloads import cut, items
from bloomlock import Growth, Window

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "counted"
SLICES, SLICE_S = 6, 0.1
CAPACITY = 1_000_000
GROWN_ITEMS, GROWN_RATE = 640_000, 1e-3
"""Of a filter that grows: of rarer errors too few could be counted."""


def counted(bench: Bench) -> Iterator[Row]:
    """Count bits of windows, what a wipe takes, and bytes of what was discarded."""
    with connect(bench.url) as client:
        for entry in bench.choose((c.PLAIN, c.WINDOW, c.DISCARDS)):
            bench.step(f"counted {entry.name}")
            row = Row("counted", TABLE, entry)
            if entry is c.DISCARDS:
                row.note(bytes=_discarded(client, bench))
            else:
                place = Place(bench.url, bench.prefix, entry.name, CAPACITY)
                made = c.make(entry.made_by, place, entry.options)
                row.note(bits=8 * made.info().memory_bytes / CAPACITY, hashes=made.num_hashes)
            if entry is c.WINDOW:
                for spent in _wipes(client, bench):
                    row.note(wipe_ms=spent)
            forget(client, bench.prefix)
            yield row


def _discarded(client: Any, bench: Bench) -> float:
    gone = items("discarded", bench.count(250_000, 50_000))
    place = Place(bench.url, bench.prefix, "discarded", 4 * len(gone))
    made = c.make("filters.shared", place, {"shards": 1})
    made.update(gone)
    before = memory_of(client, bench.prefix)
    for some in cut(gone, 1000):
        made.discard_many(some)
    return (memory_of(client, bench.prefix) - before) / len(gone)


def _wipes(client: Any, bench: Bench) -> Iterator[float]:
    """Yield the milliseconds of the server for the first add of each slice of time."""
    window = Window(timedelta(seconds=SLICES * SLICE_S), SLICES)
    place = Place(bench.url, bench.prefix, "wiped", CAPACITY)
    made = c.make("filters.shared", place, {"optimize": "memory", "window": window})
    meter = Meter(client)
    for number in bench.slices(15, 5):
        made.update(items(f"wiped {number}", min(20_000, bench.items or 20_000)))
        time.sleep(SLICE_S)
        meter.start()
        made.add(f"turn {number}")
        yield meter.stop()["server"] / 1e3


def errors(bench: Bench) -> Iterator[Row]:
    """Count the errors of a filter that has grown from a 64th."""
    most = bench.count(GROWN_ITEMS, GROWN_ITEMS // 10)
    bench.step("errors of a filter that grew")
    with connect(bench.url) as client:
        small = Place(bench.url, bench.prefix, "small", max(10, most // 64), GROWN_RATE)
        made = c.make("filters.shared", small, {"on_full": Growth(up_to=most)})
        there = items("there", most)
        made.update(there)
        row = Row("errors", f"a filter that grew to {most:,} items at {GROWN_RATE:g}", c.GROWN)
        row.note(
            denied=made.exists_many(there).count(False),
            errors=sum(made.exists_many(items("absent", most))) / most,
            slices=made.info().slices,
        )
        grown = memory_of(client, bench.prefix)
        forget(client, bench.prefix)
        right = Place(bench.url, bench.prefix, "right", most, GROWN_RATE)
        c.make("filters.shared", right, {})
        row.note(memory=grown / memory_of(client, bench.prefix))
        forget(client, bench.prefix)
    yield row


COUNTED = Part(
    "counted",
    counted,
    (
        Column("hash functions", "hashes"),
        Column("bits/item", "bits"),
        Column("wipe, server ms", "wipe_ms", form="spread"),
        Column("bytes/discarded item", "bytes"),
    ),
)
ERRORS = Part(
    "errors",
    errors,
    (
        Column("slices", "slices"),
        Column("denied", "denied"),
        Column("false positives", "errors"),
        Column("memory of the right size's", "memory"),
    ),
)
