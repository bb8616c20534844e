"""What is compared. This file only names it; each class is imported by its own processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.place import Place

    from .base import AsyncContender, Contender

SINGLE = ("add", "exists")
WITH_ANSWERS = (*SINGLE, "add_many", "exists_many")
ALL = (*WITH_ANSWERS, "update")
TASKS = ("tasks",)


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=_HasName)
STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One contender by name.

    Attributes:
        name: As on the command line.
        title: As in the tables.
        made_by: "module.Class" in this package.
        options: Keyword arguments of that class.
        operations: What to measure of it; "tasks" is for asyncio.
        batches: Whether its `add_many` is more than a loop over `add`.
        needs: A package that may not be installed ("package:pottery"), or a command that the
            server may not have ("command:BF.ADD"); empty: nothing.
        slow: By what its number of items is divided: it takes long.
    """

    name: str
    title: str
    made_by: str
    options: Mapping[str, Any] = field(default_factory=dict)
    operations: tuple[str, ...] = ALL
    batches: bool = True
    needs: str = ""
    slow: int = 1

    @property
    def ours(self) -> bool:
        """Whether it is bloomlock's."""
        return self.title.startswith("bloomlock")

    def only(self, *operations: str) -> Entry:
        """Return it with fewer operations."""
        return replace(self, operations=operations)


def ours(
    name: str, title: str, *, slow: int = 1, operations: tuple[str, ...] = ALL, **options: Any
) -> Entry:
    """Return a filter of bloomlock's with these options."""
    return Entry(name, f"bloomlock {title}", "ours.Shared", options, operations, slow=slow)


NATIVE = replace(ours("native", "native", strategy="native"), needs="command:BF.INSERT")
OURS = (*(ours(name, name, strategy=name) for name in STRATEGIES), NATIVE)
ATOMIC, LUA = OURS[:2]
ROUTES = (
    # Their `update` is their `add_many`.
    ours("items", "atomic, items", route="items", operations=WITH_ANSWERS),
    ours("bitmap", "atomic, bitmap", route="bitmap", slow=20),
)
NEAR = ours("near-cache", "atomic, near-cache", near_cache=100_000)
SHARDED = tuple(ours(f"shards-{n}", f"atomic, {n} shards", shards=n) for n in (1, 16, 64))
ASYNC = tuple(
    Entry(
        f"async-{name}",
        f"bloomlock AsyncBloomFilter {name}",
        "ours.Tasks",
        {"strategy": name},
        TASKS,
    )
    for name in STRATEGIES[:2]
)
MEMORY = Entry("memory", "bloomlock MemoryBloomFilter", "ours.Memory")

SADD = Entry("sadd", "SADD / SISMEMBER", "sets.Pipelined")
SADD_COUNT = Entry("sadd-count", "SADD, only a count", "sets.Counted", {}, ("add_many",))
EXACT = Entry("sadd-exact", "MULTI SMISMEMBER + SADD", "sets.Exact", {}, ("add_many",))
GUARDED = Entry("set-sadd", "set of Python, then SADD", "sets.Guarded", {}, ("add", "add_many"))
BARE = Entry("sadd-socket", "SADD on a socket, hiredis", "sets.Bare", {}, SINGLE, batches=False)
REDIS_BLOOM = Entry("bf", "BF.ADD / BF.MADD", "filters.RedisBloom", needs="command:BF.ADD")
REDIS_BLOOM_CUT = Entry(
    "bf-1000",
    "BF.MADD, 1,000 at a time",
    "filters.RedisBloom",
    {"chunk": 1000},
    ("add_many", "exists_many", "update"),
    needs="command:BF.ADD",
)
REDIS_BLOOM_PIPELINE = Entry(
    "bf-pipeline",
    "BF.ADD, pipelined",
    "filters.RedisBloom",
    {"pipelined": True},
    ("add_many",),
    needs="command:BF.ADD",
)
SETBIT = Entry("setbit", "SETBITs in a pipeline", "filters.ByHand", slow=4)
SCRAPY_BLOOM = Entry(
    "scrapy-redis-bloomfilter",
    "scrapy-redis-bloomfilter",
    "filters.ScrapyRedisBloomFilter",
    operations=(*SINGLE, "add_many"),
    batches=False,
    needs="package:scrapy_redis_bloomfilter",
    slow=5,
)
POTTERY = Entry(
    "pottery", "pottery BloomFilter", "filters.Pottery", needs="package:pottery", slow=10
)
ASYNC_PEERS = (
    Entry("async-sadd", "redis.asyncio SADD, 50 connections", "sets.Tasks", {}, TASKS),
    Entry(
        "async-sadd-single",
        "redis.asyncio SADD, 1 connection",
        "sets.Tasks",
        {"single": True},
        TASKS,
    ),
    Entry("glide", "valkey-glide SADD, TCP", "sets.Glide", {}, TASKS, needs="package:glide"),
    Entry(
        "async-bf",
        "redis.asyncio BF.ADD, 50 connections",
        "sets.Tasks",
        {"command": "bf"},
        TASKS,
        needs="command:BF.ADD",
    ),
)
IN_PROCESS = (
    Entry("rbloom", "rbloom", "filters.Rbloom", needs="package:rbloom"),
    Entry(
        "rbloom-mmh3",
        "rbloom, hash that can be stored",
        "filters.Rbloom",
        {"lasting": True},
        needs="package:rbloom",
    ),
    Entry("set", "set of Python", "sets.InProcess"),
)
_TRIPS = (*SINGLE, "add_many")
PING = Entry("ping", "PING by redis-py", "ping.Ping", {}, _TRIPS, batches=False)
PING_BYTES = Entry("ping-bytes", "PING bytes", "ping.Ping", {"way": "bytes"}, _TRIPS, batches=False)


def choose(entries: Iterable[Named], names: Iterable[str]) -> list[Named]:
    """Return the entries with these names, all if there are none."""
    wanted = set(names)
    return [entry for entry in entries if not wanted or entry.name in wanted]


def make(made_by: str, place: Place, options: Mapping[str, Any]) -> Contender | AsyncContender:
    """Return a contender, connected."""
    module, _, name = made_by.partition(".")
    made: Contender = getattr(import_module(f"{__name__}.{module}"), name)(place, **options)
    return made
