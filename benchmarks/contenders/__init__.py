"""What is compared. This file only names it; each module is imported by its own process."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.place import Place

    from .base import AsyncContender, Contender

SINGLE = ("add", "exists")
WITH_ANSWERS = (*SINGLE, "add_many", "exists_many")
ALL = (*WITH_ANSWERS, "update")
TASKS = ("tasks",)
STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender by name.

    Attributes:
        name: As on the command line.
        title: As in the tables.
        module: Module in this package that has its class `Contender`.
        options: Keyword arguments of that class.
        operations: What to measure of it.
        batches: Whether its `add_many` is more than a loop over `add`.
        jobs: Module beside this package that has its jobs.
        needs: A package that may not be installed ("package:pottery"), or a command that the
            server may not have ("command:BF.ADD"); empty: nothing.
        slow: By what its number of items is divided: it takes long.
        local: Whether it lives in the process and asks no server.
    """

    name: str
    title: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    operations: tuple[str, ...] = ALL
    batches: bool = True
    jobs: str = "jobs"
    needs: str = ""
    slow: int = 1
    local: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is bloomlock's."""
        return self.title.startswith("bloomlock")


def _ours(
    name: str, title: str, *, slow: int = 1, operations: tuple[str, ...] = ALL, **options: Any
) -> Entry:
    title = f"bloomlock {title}"
    return Entry(name, title, "ours", options, slow=slow, operations=operations)


OURS = tuple(_ours(name, name, strategy=name) for name in STRATEGIES)
ATOMIC = OURS[0]
BLOCKED = (
    _ours("atomic-blocked", "atomic, blocked", layout="blocked"),
    _ours("lua-blocked", "lua, blocked", strategy="lua", layout="blocked"),
)
ROUTES = (
    # Their `update` is their `add_many`.
    _ours("items", "atomic, items", route="items", operations=WITH_ANSWERS),
    _ours(
        "items-blocked", "blocked, items", layout="blocked", route="items", operations=WITH_ANSWERS
    ),
    _ours("bitmap", "atomic, bitmap", route="bitmap", slow=20),
    _ours("bitmap-blocked", "blocked, bitmap", layout="blocked", route="bitmap", slow=20),
)
NEAR = _ours("near-cache", "atomic, near-cache", near_cache=100_000)
ASYNC = tuple(
    Entry(
        f"async-{name}",
        f"bloomlock AsyncBloomFilter {name}",
        "ours_async",
        {"strategy": name},
        operations=TASKS,
        jobs="task_jobs",
    )
    for name in STRATEGIES[:2]
)
MEMORY = (
    Entry("memory", "bloomlock MemoryBloomFilter", "memory", local=True),
    Entry(
        "memory-blocked",
        "bloomlock MemoryBloomFilter, blocked",
        "memory",
        {"layout": "blocked"},
        local=True,
    ),
)

SADD = Entry("sadd", "SADD / SISMEMBER", "redis_set")
SADD_COUNT = Entry(
    "sadd-count",
    "SADD, only a count",
    "redis_set",
    {"batch": "count"},
    operations=("add_many",),
)
SETBIT = Entry("setbit", "SETBITs in a pipeline", "setbit", slow=4)
SCRAPY_BLOOM = Entry(
    "scrapy-redis-bloomfilter",
    "scrapy-redis-bloomfilter",
    "scrapy_bloom",
    batches=False,
    operations=(*SINGLE, "add_many"),
    needs="package:scrapy_redis_bloomfilter",
    slow=5,
)
POTTERY = Entry("pottery", "pottery BloomFilter", "pottery_bloom", needs="package:pottery", slow=10)
REDIS_BLOOM = Entry("bf", "BF.ADD / BF.MADD", "redis_bloom", needs="command:BF.ADD")
REDIS_BLOOM_CUT = Entry(
    "bf-1000",
    "BF.MADD, 1,000 at a time",
    "redis_bloom",
    {"chunk": 1000},
    operations=("add_many", "exists_many", "update"),
    needs="command:BF.ADD",
)
REDIS_BLOOM_PIPELINE = Entry(
    "bf-pipeline",
    "BF.ADD, pipelined",
    "redis_bloom",
    {"pipelined": True},
    operations=("add_many",),
    needs="command:BF.ADD",
)
ASYNC_PEERS = (
    Entry(
        "async-sadd",
        "redis.asyncio SADD, 50 connections",
        "redis_async",
        operations=TASKS,
        jobs="task_jobs",
    ),
    Entry(
        "async-sadd-single",
        "redis.asyncio SADD, 1 connection",
        "redis_async",
        {"connections": "single"},
        operations=TASKS,
        jobs="task_jobs",
    ),
    Entry(
        "async-bf",
        "redis.asyncio BF.ADD, 50 connections",
        "redis_async",
        {"command": "bf"},
        operations=TASKS,
        jobs="task_jobs",
        needs="command:BF.ADD",
    ),
)
RBLOOM = (
    Entry("rbloom", "rbloom", "in_process", {"kind": "rbloom"}, needs="package:rbloom", local=True),
    Entry(
        "rbloom-mmh3",
        "rbloom, hash that can be stored",
        "in_process",
        {"kind": "rbloom-mmh3"},
        needs="package:rbloom",
        local=True,
    ),
    Entry("set", "set of Python", "in_process", {"kind": "set"}, local=True),
)
_TRIPS = (*SINGLE, "add_many")
PING = Entry("ping", "PING by redis-py", "ping", batches=False, operations=_TRIPS)
PING_BYTES = Entry(
    "ping-bytes", "PING bytes", "ping", {"way": "bytes"}, batches=False, operations=_TRIPS
)


def choose(entries: Iterable[Entry], names: Iterable[str]) -> list[Entry]:
    """Return the entries with these names, all if there are none."""
    wanted = set(names)
    return [entry for entry in entries if not wanted or entry.name in wanted]


def make(module: str, place: Place, options: Mapping[str, Any]) -> Contender | AsyncContender:
    """Return a contender, connected."""
    made: Contender = import_module(f"{__name__}.{module}").Contender(place, **options)
    return made
