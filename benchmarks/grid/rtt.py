"""A server that is far away: round trips of 0.5 and 1 ms through a delaying proxy.

0 is the unix socket itself. What needs several round trips pays for each of them, batches and
tasks of asyncio that share their round trips hardly notice, and a near-cache asks for one item
in ten. `tasks` are 1,000 tasks of asyncio adding one item after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import contenders

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

# A thousand items one after the other take seconds, and show what one item shows.
_ONE_BY_ONE = tuple(
    replace(entry, operations=contenders.SINGLE)
    for entry in (contenders.SCRAPY_BLOOM, contenders.PING)
)
ENTRIES = (
    *contenders.OURS,
    contenders.NEAR,
    contenders.ASYNC[0],
    contenders.SADD,
    contenders.REDIS_BLOOM,
    contenders.SETBIT,
    contenders.POTTERY,
    *_ONE_BY_ONE,
    contenders.ASYNC_PEERS[0],
)
ROUND_TRIPS_MS = (0.0, 0.5, 1.0)
BATCH = 1000


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    cases = (
        Case("add", options.offered(60)),
        Case("add", options.offered(300), "zipf"),
        Case("add_many", options.offered(2 * BATCH, BATCH), batch=BATCH),
        Case("tasks", options.offered(4000), tasks=1000),
    )
    stage = Stage(ENTRIES, cases, options.slices(6, 2), error_rate=options.error_rates[0])
    trips = ROUND_TRIPS_MS[:2] if options.quick else ROUND_TRIPS_MS
    stages = [replace(stage, round_trip_ms=milliseconds) for milliseconds in trips]
    return engine.run(stages, options, url, prefix)
