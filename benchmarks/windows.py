"""What a time window costs beside a filter without one: a part of the suite `scale`.

Both have `optimize="memory"` and the same capacity and rate. An add of an item that is there is one
command, that of a new item two; with `refresh=True` every add is one. A slice is turned and wiped
by an add, here each tenth of a second: what the server's processor spends on that for a MiB.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import contenders as c
from benchmarks import show
from benchmarks.engine import Case, Stage
from benchmarks.place import Meter, connect, forget
from benchmarks.scale_parts import Part
from benchmarks.workloads import fingerprints
from bloomlock import BloomFilter, Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from benchmarks.options import Options

CAPACITY = 1_000_000
ERROR_RATE = 1e-6
WEEK_S = 7 * 86_400.0
SHORTEST_S = 1.4
SLICE_S = 0.1
TURNS = 15
BATCH = 1000
ENTRIES = (
    # The first is what the others are compared with, and no peer of another kind.
    c.Entry("no-window", "no window", "ours.Shared", {"optimize": "memory"}),
    c.ours("window", "window of a week", optimize="memory", window=WEEK_S),
    c.ours(
        "window-refresh",
        "the same, refresh=True",
        optimize="memory",
        window=Window(WEEK_S, refresh=True),
    ),
)


def stage(options: Options) -> Stage:
    """Say what is measured of windows and of a filter without one."""
    items = options.offered(500)
    many = options.offered(2 * BATCH, BATCH)
    cases = (
        Case("exists", items, "half"),
        Case("exists", items, "seen"),
        Case("add", items),
        Case("add", items, "seen"),
        Case("add", items, "zipf"),
        Case("exists_many", many, "half", batch=BATCH),
        Case("add_many", many, batch=BATCH),
    )
    # All comes in one slice, which is made for a fourteenth of the capacity.
    fill = options.items or 10_000
    return Stage(ENTRIES, cases, options.slices(15, 3), CAPACITY, ERROR_RATE, fill=fill)


def measure(options: Options, url: str, prefix: str) -> list[dict[str, Any]]:
    """Measure memory and the wipe."""
    rows: list[dict[str, Any]] = []
    turns = 3 if options.quick or options.items else TURNS
    with connect(url) as client:
        try:
            for entry in ENTRIES[:2]:
                made = BloomFilter(
                    entry.name, CAPACITY, ERROR_RATE, client=client, prefix=prefix, **entry.options
                )
                rows.append(
                    {
                        "title": entry.title,
                        "bits": made.num_bits / CAPACITY,
                        "memory": 8 * made.info().memory_bytes / CAPACITY,
                        "hashes": made.num_hashes,
                    }
                )
            wiped = BloomFilter(
                "wiped", CAPACITY, ERROR_RATE, client=client, prefix=prefix, shards=1,
                optimize="memory", window=SHORTEST_S,
            )  # fmt: skip
            wiped.update(fingerprints("wiped", options.items or 70_000))
            mib = wiped.num_bits / 8 / 2**20
            meter, each = Meter(client), []
            for number in range(turns):
                time.sleep(SLICE_S)
                meter.start()
                wiped.add(f"turn {number}")
                each.append(1000 * meter.stop().busy / mib)
        finally:
            forget(client, prefix)
    wipe = [round(one, 4) for one in each]
    return [*rows, {"title": "a slice", "wipe_ms": wipe, "mib": round(mib, 2)}]


def tables(rows: list[dict[str, Any]]) -> Iterator[Table]:
    """Make a table of memory, and one of the wipe."""
    *filters, wiped = rows
    lines = [
        [row["title"], str(row["hashes"]), f"{row['bits']:.1f}", f"{row['memory']:.1f}"]
        for row in filters
    ]
    columns = ["", "hash functions", "bits/item", "bits/item as the server says"]
    yield show.table(f"windows: memory for {CAPACITY:,} at {ERROR_RATE:g}", columns, lines)
    wipe = wiped["wipe_ms"]
    line = [wiped["title"], f"{median(wipe):.2f}", f"{min(wipe):.2f}-{max(wipe):.2f}"]
    columns = ["", "server ms/MiB", "least-most", "MiB"]
    title = "windows: turning to the next slice, and wiping one"
    yield show.table(title, columns, [[*line, str(wiped["mib"])]])


PART = Part("windows", measure, tables)
