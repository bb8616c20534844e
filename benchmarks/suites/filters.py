"""The suites that the engine measures: contenders and cases."""

from __future__ import annotations

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage, part
from benchmarks.suite import Suite

from . import busy

LARGE = 10_000_000


def batches(size: int, items: int, *, fresh: bool = False, full: bool = False) -> Case:
    return Case("add_many", items, batch=size, fresh=fresh, full=full)


SINGLE = Suite(
    "single",
    "one item in a call, near and far; the server at 50 connections",
    (
        part(
            "single",
            Stage(
                (*c.OURS, c.NEAR, c.SADD, c.BF, c.PING, c.PING_BYTES),
                (
                    Case("add", 250),
                    Case("exists", 250, "half"),
                    Case("add", 250, "seen"),
                    Case("add", 250, "most"),
                ),
                (40, 6),
            ),
        ),
        part(
            "far",
            Stage(
                (c.ATOMIC, c.LUA, c.NEAR, c.SADD, c.BF, c.PING),
                (Case("add", 60), Case("add", 300, "most")),
                (6, 2),
                round_trip_ms=0.5,
            ),
        ),
        busy.PART,
    ),
)

_MIDDLE = (c.ATOMIC, c.LUA, c.ITEMS, c.BITMAP, c.SADD, c.EXACT, c.BF)
BATCH = Suite(
    "batch",
    "from 1 to 1,000,000 items in a call",
    (
        part(
            "batch",
            Stage(
                (*_MIDDLE, c.SADD_COUNT, *c.OURS[2:]),
                (
                    batches(1, 200, full=True),
                    batches(10, 1000),
                    batches(100, 2000),
                    batches(1000, 5000),
                    Case("exists_many", 5000, "half", 1000),
                    Case("update", 5000, batch=1000),
                ),
                (12, 3),
            ),
            Stage(_MIDDLE, (batches(10_000, 50_000),), (8, 3)),
            Stage(
                (c.ATOMIC, c.ITEMS, c.BITMAP, c.NATIVE, c.SADD, c.EXACT, c.BF),
                (
                    batches(200_000, 200_000, fresh=True),
                    Case("update", 200_000, batch=200_000, fresh=True),
                ),
                (7, 2),
            ),
            Stage((c.ATOMIC, c.NATIVE, c.BF), (batches(1_000_000, 1_000_000, fresh=True),), (3, 0)),
        ),
    ),
)

_SIZED = (c.ATOMIC, c.ITEMS, c.LUA, c.SADD_COUNT, c.BF, c.PING)
_SIZED_CASES = (Case("add", 250), batches(1000, 5000), Case("exists_many", 5000, "half", 1000))
_BULK = (batches(200_000, 200_000),)
SIZES = Suite(
    "sizes",
    "filters for 10^5 to 10^7 items",
    (
        part(
            "sizes",
            Stage(_SIZED, _SIZED_CASES, (9, 3), 100_000, fill=25_000),
            Stage(_SIZED, _SIZED_CASES, (9, 3), fill=250_000),
            Stage(_SIZED, _SIZED_CASES, (9, 3), LARGE, fill=500_000),
            Stage((c.ATOMIC, c.BF), _BULK, (5, 2), LARGE),
        ),
    ),
)

TASKS = Suite(
    "tasks",
    "from 1 to 1,000 tasks of asyncio",
    (
        part(
            "tasks",
            Stage(
                c.ASYNC,
                (
                    Case("tasks", 300, tasks=1),
                    Case("tasks", 1000, tasks=10, full=True),
                    Case("tasks", 3000, tasks=100, full=True),
                    Case("tasks", 20_000, tasks=1000),
                ),
                (15, 4),
            ),
        ),
    ),
)

_SINGLES = (
    Case("add", 300),
    Case("exists", 300, "half"),
    Case("exists", 300, "seen"),
    Case("add", 300, "seen"),
)
_BATCHES = (Case("exists_many", 2000, "half", 1000), batches(1000, 2000))
WINDOWS = Suite(
    "windows",
    "windows, discards and growth beside a plain filter",
    (
        part(
            "windows",
            Stage((c.PLAIN, c.WINDOW, c.REFRESHED), (*_SINGLES, *_BATCHES), (15, 3), fill=10_000),
        ),
        part(
            "discards",
            Stage((c.NEVER, c.DISCARDS), (*_SINGLES, *_BATCHES), (9, 3), 100_000, fill=50_000),
        ),
        part(
            "growth",
            Stage((c.RIGHT, c.GROWN), (*_SINGLES[1:], *_BATCHES[:1]), (7, 3), 64_000, fill=5_000),
        ),
    ),
)

SCALE = Suite(
    "scale",
    "10^8 items, 1 to 4,096 shards",
    (
        part(
            "large",
            Stage(_SIZED, (*_SIZED_CASES, *_BULK), (5, 0), 10 * LARGE, fill=500_000),
        ),
        part(
            "shards",
            Stage(
                (*c.sharded(1, 16, 64, 1024, 4096), c.SADD_COUNT, c.PING),
                (Case("add", 250), batches(1000, 2000), batches(10_000, 20_000)),
                (9, 3),
                fill=50_000,
            ),
        ),
    ),
)
