"""1 to 1,000 tasks of asyncio in one process, each adding one item after the other.

One client for all tasks. The calls of an AsyncBloomFilter that wait at the same time go out as one
batch; redis.asyncio sends one command for each item on one of its connections. Its default pool
ends with an error at 1,000 tasks, so tasks wait for one of 50 connections, which was fastest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import contenders

from . import engine
from .case import Case, Stage

if TYPE_CHECKING:
    from benchmarks.options import Options

ENTRIES = (*contenders.ASYNC, *contenders.ASYNC_PEERS)
TASKS = {1: 300, 10: 1000, 100: 3000, 1000: 20_000}
"""Items of a slice, for each number of tasks."""


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure; return what was measured as plain data."""
    chosen = (1, 1000) if options.quick else TASKS
    cases = tuple(Case("tasks", options.offered(TASKS[n]), tasks=n) for n in chosen)
    stage = Stage(ENTRIES, cases, options.slices(15, 4), error_rate=options.error_rates[0])
    return engine.run([stage], options, url, prefix)
