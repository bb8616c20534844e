"""Filters for 10^5 to 10^8 items: how cost grows with size.

Every filter holds a quarter of its capacity before, at most half a million items: so nearly all its
memory has been touched and no slice pays for fresh pages. What grows with size then is the way to
memory: an item has k bits anywhere. In a filter of 5.8 MB (10^6 items) they come from the
processor's caches, in one of 590 MB (10^8) each is a miss of cache and TLB; and offsets have more
digits to be sent and read. For a server without a module the commands themselves cost most. `items`
sends the bits of each item at any size; `bloomlock atomic` takes the route that its rule chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "filters for 10^5 to 10^8 items"
ENTRIES = (
    c.ATOMIC,
    c.ROUTES[0],
    c.LUA,
    c.SADD_COUNT,
    c.REDIS_BLOOM,
    c.PING.only(*c.SINGLE),
)
CAPACITIES = (100_000, 1_000_000, 10_000_000, 100_000_000)
BATCH = 1000
LARGE_BATCH = 200_000
MOST_FILL = 500_000


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    most_fill = options.items or (MOST_FILL // 5 if options.quick else MOST_FILL)
    items = options.offered(5 * BATCH, BATCH)
    cases = (
        Case("add", options.offered(250)),
        Case("add_many", items, batch=BATCH),
        Case("exists_many", items, "half", batch=BATCH),
    )
    large = (Case("add_many", LARGE_BATCH, batch=LARGE_BATCH),)
    rate = options.error_rates[0]
    for capacity in CAPACITIES[: 3 if options.quick else None]:
        fill = min(capacity // 4, most_fill)
        yield Stage(ENTRIES, cases, options.slices(9, 3), capacity, rate, fill=fill)
        if capacity > LARGE_BATCH and not options.items:
            entries = (c.ATOMIC, c.REDIS_BLOOM)
            yield Stage(entries, large, options.slices(5, 2), capacity, rate)
