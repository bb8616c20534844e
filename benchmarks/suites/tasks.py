"""1 to 1,000 tasks of asyncio in one process, each adding one item after the other.

One client for all tasks. The calls of an AsyncBloomFilter that wait at the same time go out as one
batch; redis.asyncio sends one command for each item on one of its connections. Its default pool
ends with an error at 1,000 tasks, so tasks wait for one of 50 connections, which was fastest.
valkey-glide sends all on one connection by TCP, from a core written in Rust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.options import Options

ABOUT = "from 1 to 1,000 tasks of asyncio"
ENTRIES = (*c.ASYNC, *c.ASYNC_PEERS)
TASKS = {1: 300, 10: 1000, 100: 3000, 1000: 20_000}
"""Items of a slice, for each number of tasks."""


def stages(options: Options) -> Iterator[Stage]:
    """Say what is measured."""
    chosen = (1, 1000) if options.quick else TASKS
    cases = tuple(Case("tasks", options.offered(TASKS[n]), tasks=n) for n in chosen)
    yield Stage(ENTRIES, cases, options.slices(15, 4), error_rate=options.error_rates[0])
