"""What is compared. This file only names it; each module is imported by its own process."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.place import Place

    from .base import Contender

SINGLE = ("add", "exists")
ALL = (*SINGLE, "add_many")
STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender by name.

    Attributes:
        name: As on the command line.
        title: As in the tables.
        module: Module in this package that has its class `Contender`.
        options: Keyword arguments of that class.
        rated: Whether its cost depends on the error rate, so that it gets a row for each.
        operations: What to measure of it.
        batches: Whether its `add_many` is more than a loop over `add`.
        jobs: Module beside this package that knows what it can be told to do.
    """

    name: str
    title: str
    module: str
    options: Mapping[str, str] = field(default_factory=dict)
    rated: bool = False
    operations: tuple[str, ...] = ALL
    batches: bool = True
    jobs: str = "jobs"


OURS = tuple(
    Entry(name, f"bloomlock {name}", "ours", {"strategy": name}, rated=True) for name in STRATEGIES
)
SADD = Entry("sadd", "SADD / SISMEMBER", "redis_set")
SADD_COUNT = Entry(
    "sadd-count",
    "SADD, only a count",
    "redis_set",
    {"batch": "count"},
    operations=("add_many",),
)
SCRAPY_BLOOM = Entry(
    "scrapy-redis-bloomfilter", "scrapy-redis-bloomfilter", "scrapy_bloom", batches=False
)
PING = Entry("ping", "PING by redis-py", "ping", batches=False)
PING_BYTES = Entry("ping-bytes", "PING bytes", "ping", {"way": "bytes"}, batches=False)


def choose(entries: Iterable[Entry], names: Iterable[str]) -> list[Entry]:
    """Return the entries with these names, all if there are none."""
    wanted = set(names)
    return [entry for entry in entries if not wanted or entry.name in wanted]


def make(module: str, place: Place, options: Mapping[str, str]) -> Contender:
    """Return a contender, connected."""
    made: Contender = import_module(f"{__name__}.{module}").Contender(place, **options)
    return made
