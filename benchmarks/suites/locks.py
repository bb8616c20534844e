"""Locks: one client, and many on one lock."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import Entry
from benchmarks.jobs import without_gc
from benchmarks.place import Meter, Place, connect
from benchmarks.processes import assembled
from benchmarks.results import Row, percentile
from benchmarks.suite import Bench, Part, Suite
from benchmarks.tables import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders.locks import Locks

    Grant = tuple[int, int, int]
    Diary = tuple[int, int, list[Grant], int]

ENTRIES = (
    Entry("Lock", "bloomlock Lock", ""),
    Entry("FairLock", "bloomlock FairLock", ""),
    Entry("redis-py", "redis-py Lock", ""),
    Entry("redis-py-1ms", "redis-py Lock, sleep 1 ms", ""),
    Entry("python-redis-lock", "python-redis-lock", "", needs="package:redis_lock"),
    Entry("ping-client", "2 PING by redis-py", ""),
    Entry("ping-bytes", "2 PING bytes", ""),
)
SEAT = Entry("locks", "a client", "locks.Locks")
CELLS = ((1, 0.0), (1, 1.0), (8, 0.0), (8, 1.0), (64, 0.0), (64, 1.0))
"""Clients, and milliseconds for which each holds the lock."""
ROUNDS = 4
"""A slice is long enough for each client to hold the lock so often."""


@dataclass(frozen=True, slots=True)
class Contend:
    """Acquires, holds and releases a lock until the time is over; notes when each happened."""

    name: str
    seconds: float  # after which no new cycle begins
    hold: float  # seconds to sleep while holding it

    def prepare(self, locks: Locks) -> Callable[[], Diary]:
        """Connect and load the scripts; return what answers (start, end, grants, errors)."""
        lock = locks.lock(self.name)
        lock.acquire()
        lock.release()
        return without_gc(lambda: self._contend(lock))

    def _contend(self, lock: Any) -> Diary:
        now, grants, errors = time.monotonic_ns, [], 0
        start = asked = now()
        end = start + round(self.seconds * 1e9)
        while asked < end:
            try:
                lock.acquire()
                got = now()
                if self.hold:
                    time.sleep(self.hold)
                released = now()
                lock.release()
                grants.append((asked, got, released))
            except Exception:  # noqa: BLE001 - whatever a lock raises is its result
                errors += 1
            asked = now()
        return start, end, grants, errors


def figures(clients: Sequence[Diary]) -> dict[str, float]:
    """Put together what the clients of one slice noted."""
    start, end = max(each[0] for each in clients), min(each[1] for each in clients)
    shares = [sum(start <= grant[1] <= end for grant in grants) for _, _, grants, _ in clients]
    grants = sorted((one for each in clients for one in each[2]), key=lambda grant: grant[1])
    waits = sorted((got - asked) / 1e6 for asked, got, _ in grants)
    return {
        "grants": len(grants),
        "rate": sum(shares) / ((end - start) / 1e9),
        "p50": percentile(waits, 0.5),
        "p99": percentile(waits, 0.99),
        "jain": jain(shares),
        "twice": sum(later[1] < earlier[2] for earlier, later in pairwise(grants)),
        "errors": sum(each[3] for each in clients),
    }


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 if all have the same, 1/n if one has everything.

    >>> jain([5, 5, 5, 5]), jain([8, 0, 0, 0])
    (1.0, 0.25)
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def measure(bench: Bench) -> Iterable[Row]:
    entries, order = bench.choose(ENTRIES), random.Random(0)
    rows: dict[tuple[int, float, Entry], Row] = {}
    seat = (SEAT, Place(bench.url, "lock"))
    with connect(bench.url) as client, assembled([seat], CELLS[-1][0]) as (team,):
        meter = Meter(client)
        for _ in bench.slices(9, 3):
            for clients, hold in CELLS:
                able = [e for e in entries if (clients, hold) == (1, 0.0) or "ping" not in e.name]
                usual = 0.2 if clients == 1 or bench.items else 0.4 if bench.quick else 0.8
                seconds = max(usual, ROUNDS * clients * hold / 1e3)
                for entry in order.sample(able, len(able)):
                    jobs = [Contend(entry.name, seconds, hold / 1e3)] * clients
                    found = figures(team.run(jobs, meter.start))
                    cost = meter.stop(found["grants"] or 1)
                    table = f"{clients} client{'s' * (clients > 1)}, held {hold:g} ms"
                    row = Row.of("locks", table, entry, clients=clients, hold=hold)
                    rows.setdefault((clients, hold, entry), row).note(**found, **cost)
    return [rows[*c, e] for c in CELLS for e in entries if (*c, e) in rows]


COLUMNS = (
    Column("grants/s", "rate"),
    Column("/ redis-py", "rate", "redis-py", "spread"),
    Column("wait p50 ms", "p50"),
    Column("wait p99 ms", "p99", form="spread"),
    Column("Jain", "jain"),
    Column("trips", "trips"),
    Column("server µs", "server"),
    Column("held twice", "twice", form="sum"),
    Column("errors", "errors", form="sum"),
)
SUITE = Suite("locks", "one client, and 8 and 64 on one lock", (Part("locks", measure, COLUMNS),))
