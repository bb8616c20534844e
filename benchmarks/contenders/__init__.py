"""What is compared. This file only names it; each class is imported by its own processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bloomlock import Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.place import Place

SINGLE = ("add", "exists")
ALL = (*SINGLE, "add_many", "exists_many", "update")
TASKS = ("tasks",)
STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    name: str  # as on the command line
    title: str  # as in the tables
    made_by: str  # "module.function" in this package
    options: Mapping[str, Any] = field(default_factory=dict)  # of that function
    operations: tuple[str, ...] = ALL  # "tasks" is for asyncio
    needs: str = ""  # "package:rbloom" or "command:BF.ADD", which may not be there
    slow: int = 1  # by what its number of items is divided


def make(entry: Entry, place: Place) -> Any:
    module, _, name = entry.made_by.partition(".")
    return getattr(import_module(f"{__name__}.{module}"), name)(place, **entry.options)


def ours(name: str, title: str, **options: Any) -> Entry:
    return Entry(name, f"bloomlock {title}".strip(), "filters.shared", options)


_BF = "command:BF.ADD"
NATIVE = replace(ours("native", "native", strategy="native"), needs="command:BF.INSERT")
OURS = (*(ours(name, name, strategy=name) for name in STRATEGIES), NATIVE)
ATOMIC, LUA = OURS[:2]
ITEMS = ours("items", "atomic, items", route="items")
BITMAP = ours("bitmap", "atomic, bitmap", route="bitmap")
NEAR = ours("near-cache", "atomic, near-cache", near_cache=100_000)
SPEED = ours("speed", "atomic, optimize speed", optimize="speed")
MEMORY = ours("memory", "atomic, optimize memory", optimize="memory")
SADD = Entry("sadd", "SADD / SISMEMBER", "filters.sadd")
SADD_COUNT = Entry("sadd-count", "SADD, only a count", "filters.counted", {}, ("add_many",))
EXACT = Entry("exact", "MULTI SMISMEMBER + SADD", "filters.exact", {}, ("add_many",))
BF = Entry("bf", "BF.ADD / BF.MADD", "filters.bloom", needs=_BF)
PING = Entry("ping", "PING by redis-py", "filters.ping", {}, SINGLE)
PING_BYTES = Entry("ping-bytes", "PING bytes", "filters.ping", {"way": "bytes"}, SINGLE)

ASYNC = (
    *(
        Entry(f"async-{n}", f"bloomlock {n}", "tasks.shared", {"strategy": n}, TASKS)
        for n in STRATEGIES[:2]
    ),
    Entry("async-sadd", "redis.asyncio SADD, 50 connections", "tasks.commands", {}, TASKS),
    Entry("async-sadd-one", "redis.asyncio SADD, 1 connection", "tasks.single", {}, TASKS),
    Entry("async-bf", "redis.asyncio BF.ADD, 50 connections", "tasks.bloom", {}, TASKS, _BF),
)

WEEK = timedelta(days=7)
# The plain filter is what the others are compared with, and has the memory's bits as they have.
PLAIN = Entry("plain", "no window", "filters.shared", {"optimize": "memory"})
WINDOW = ours("window", "window of 6 slices", optimize="memory", window=Window(WEEK, 6))
REFRESHED = ours(
    "refresh", "the same, refresh=True", optimize="memory", window=Window(WEEK, 6, refresh=True)
)
NEVER = Entry("plain", "nothing discarded", "filters.shared", {"shards": 1})
DISCARDS = Entry("discards", "bloomlock with discarded items", "filters.discarding")
RIGHT = Entry("plain", "of the right size", "filters.shared", {"shards": 1, "route": "items"})
GROWN = Entry("grown", "bloomlock grown from a 64th", "filters.grown")


def sharded(*numbers: int) -> tuple[Entry, ...]:
    """Return filters over so many shards that send the bits of each item."""
    return tuple(
        ours(f"shards-{n}", f"{n:,} shard{'s' * (n > 1)}", shards=n, route="items") for n in numbers
    )
