"""Locks, and bare round trips in their place: an acquire and a release each.

One process makes them all, each when it is first needed, with a client of its own: 64 processes
for every lock would not fit into the memory of a small machine. Each lock object is made once and
used again, which is the cheapest way for all of them.
"""

from __future__ import annotations

from typing import Any

import bloomlock
from benchmarks.place import Place, connect

from .filters import ping

LEASE = 30
"""Seconds; nothing here holds a lock that long. Only ours would renew it."""


class Locks:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._made: dict[str, Any] = {}

    def lock(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, self._place)
        return self._made[name]


def _make(name: str, place: Place) -> Any:
    client, key = connect(place.url), f"{place.name}:{name}"
    match name:
        case "Lock" | "FairLock":
            kind = getattr(bloomlock, name)
            return kind(key, client, LEASE)
        case "redis-py":
            return client.lock(key, timeout=LEASE)
        case "redis-py-1ms":
            return client.lock(key, timeout=LEASE, sleep=0.001)
        case "python-redis-lock":
            import redis_lock  # noqa: PLC0415 - may not be installed

            return redis_lock.Lock(client, key, expire=LEASE)
        case _:
            return ping(place, way=name.removeprefix("ping-"))
