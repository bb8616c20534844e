"""Claims, beside a lock with a set."""

from __future__ import annotations

from benchmarks import contenders as c
from benchmarks.engine import Case, Stage, part
from benchmarks.suite import Suite
from benchmarks.tables import FULL, Column

OURS = c.Entry("claims", "bloomlock", "claims.Claims")
LOCK = c.Entry("lock-sadd", "redis-py Lock + SADD", "claims.LockAndSet")
SCHEMES = (OURS, LOCK)
TRIPS = (c.PING, c.PING_BYTES)
SINGLES = (Case("add", 200), Case("exists", 200, "seen"))
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
        ),
    ),
)
