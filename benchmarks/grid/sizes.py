"""Filters for 10^5 to 10^8 items: how cost grows with size.

Every filter holds a quarter of its capacity before, at most half a million items: so nearly all its
memory has been touched and no slice pays for fresh pages. What grows with size then is the way to
memory: an item of a classic filter has k bits anywhere. In a filter of 3.6 MB (10^6 items) they
come from the processor's caches, in one of 360 MB (10^8) each is a miss of cache and TLB; and
offsets have more digits to be sent and read. In the blocked layout all k bits lie in one cache
line: one miss for an item at any size. For a server without a module the commands themselves cost
most. `items` sends the bits of each item at any size; `bloomlock atomic` takes the bitmap of a
small filter to the client instead where that is cheaper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import contenders

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

ENTRIES = (
    contenders.ATOMIC,
    *contenders.ROUTES[:2],
    contenders.OURS[1],
    contenders.BLOCKED[1],
    contenders.SADD_COUNT,
    contenders.REDIS_BLOOM,
    contenders.PING,
)
CAPACITIES = (100_000, 1_000_000, 10_000_000, 100_000_000)
BATCH = 1000
MOST_FILL = 500_000


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    most_fill = options.items or (MOST_FILL // 5 if options.quick else MOST_FILL)
    items = options.offered(5 * BATCH, BATCH)
    cases = (
        Case("add", options.offered(250)),
        Case("add_many", items, batch=BATCH),
        Case("exists_many", items, "half", batch=BATCH),
    )
    stages = [
        Stage(
            ENTRIES,
            cases,
            options.slices(9, 3),
            capacity,
            options.error_rates[0],
            fill=min(capacity // 4, most_fill),
        )
        for capacity in CAPACITIES[: 3 if options.quick else None]
    ]
    return engine.run(stages, options, url, prefix)
