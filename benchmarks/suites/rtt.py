"""A server that is far away: round trips of 0.5 and 1 ms through a delaying proxy.

0 is the unix socket itself. What needs several round trips pays for each of them, batches and
tasks of asyncio that share their round trips hardly notice, and a near-cache asks for one item
in ten. `tasks` are 1,000 tasks of asyncio adding one item after the other. Batches of 100 go into
filters of 1, 16 and 64 shards as well: one round trip, however many there are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "round trips of 0, 0.5 and 1 ms"
SHARDED = (*c.SHARDED, c.SADD, c.EXACT, c.REDIS_BLOOM)
ENTRIES = (
    *c.OURS,
    c.NEAR,
    c.ASYNC[0],
    c.SADD,
    c.EXACT,
    c.GUARDED,
    c.REDIS_BLOOM,
    c.SETBIT,
    c.POTTERY,
    # A thousand items one after the other take seconds, and show what one item shows.
    c.SCRAPY_BLOOM.only(*c.SINGLE),
    c.PING.only(*c.SINGLE),
    c.ASYNC_PEERS[0],
    *c.SHARDED,
)
ROUND_TRIPS_MS = (0.0, 0.5, 1.0)
BATCH = 1000
SMALL_BATCH = 100


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    cases = (
        Case("add", options.offered(60)),
        Case("add", options.offered(300), "zipf"),
        Case("add_many", options.offered(2 * BATCH, BATCH), batch=BATCH),
        Case("tasks", options.offered(4000), tasks=1000),
    )
    sharded = (Case("add_many", options.offered(20 * SMALL_BATCH, SMALL_BATCH), batch=SMALL_BATCH),)
    rate = options.error_rates[0]
    plain = tuple(entry for entry in ENTRIES if entry not in c.SHARDED)
    trips = ROUND_TRIPS_MS[:2] if options.quick else ROUND_TRIPS_MS
    for chosen, those in ((plain, cases), (SHARDED, sharded)):
        stage = Stage(chosen, those, options.slices(6, 2), error_rate=rate)
        yield from (replace(stage, round_trip_ms=milliseconds) for milliseconds in trips)
