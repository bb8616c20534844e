"""Claims, beside a lock with a set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage, part
from benchmarks.place import Place, connect, forget, memory_of
from benchmarks.results import Row
from benchmarks.suite import Bench, Part, Suite
from benchmarks.tables import FULL, Column
from benchmarks.workloads import cut, items

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = c.Entry("claims", "bloomlock", "claims.Claims")
LOCK = c.Entry("lock-sadd", "redis-py Lock + SADD", "claims.LockAndSet")
SCHEMES = (OURS, LOCK)
TRIPS = (c.PING, c.PING_BYTES)
SINGLES = (Case("add", 200), Case("exists", 200, "seen"))
KEPT = 10_000
"""Items of which the memory is taken."""


def memory(bench: Bench) -> Iterator[Row]:
    count = bench.count(KEPT)
    with connect(bench.url) as client:
        for entry in bench.choose(SCHEMES):
            place = Place(bench.url, f"{bench.prefix}m:", "kept", count)
            scheme = c.make(entry, place)
            before = memory_of(client, place.prefix)
            handles = [one for some in cut(items("kept", count), 1000) for one in scheme.take(some)]
            claimed = memory_of(client, place.prefix) - before
            for some in cut(handles, 1000):
                scheme.finish(some)
            row = Row.of("memory", f"bytes for each of {count:,} items", entry)
            row.note(finished=memory_of(client, place.prefix) / count, open=claimed / count)
            forget(client, place.prefix)
            yield row


SUITE = Suite(
    "claims",
    "claim, work, commit, beside a lock with a set",
    (
        part(
            "calls",
            Stage((*SCHEMES, *TRIPS), SINGLES, (20, 3)),
            Stage(SCHEMES, (Case("add_many", 1000, batch=100),), (9, 3)),
            Stage(
                (*SCHEMES, *TRIPS),
                (Case("add", 50), Case("add_many", 400, batch=100)),
                (8, 2),
                round_trip_ms=0.5,
            ),
            columns=(
                Column("items/s", "rate"),
                Column("/ Lock + SADD", "rate", "lock-sadd", "spread"),
                Column("/ PING", "rate", "ping", "spread"),
                *FULL[5:],
            ),
            pivot="",
        ),
        Part("memory", memory, (Column("finished", "finished"), Column("open claim", "open"))),
    ),
)
