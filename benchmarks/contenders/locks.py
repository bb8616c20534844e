"""Locks, and bare round trips in their place: an acquire and a release each.

One process makes them all, each when it is first asked for, with a client of its own: 64 processes
for every lock would not fit into the memory of a small machine. Each lock object is made once and
used again, which is the cheapest way for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis.asyncio

from benchmarks.place import Place, connect

from .ping import Ping

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 30
"""Seconds; nothing here holds a lock that long. Only ours would renew it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What a cycle calls; of a lock for asyncio, both give something to await."""

    acquire: Callable[[], Any]
    release: Callable[[], Any]


class Locks:
    """All locks at one place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pairs: dict[str, Pair] = {}
        self._asyncio: redis.asyncio.Redis | None = None

    def pair(self, name: str) -> Pair:
        """Return the lock of this name that the whole process uses."""
        if name not in self._pairs:
            self._pairs[name] = _MAKERS[name](self._place, f"{self._place.name}:{name}")
        return self._pairs[name]

    def task_pair(self, name: str) -> Pair:
        """Return a lock for one task; the tasks of this process share one client."""
        if self._asyncio is None:
            self._asyncio = redis.asyncio.Redis.from_url(self._place.url)
        return _TASK_MAKERS[name](self._asyncio, self._place, f"{self._place.name}:{name}")


def _ping(place: Place, _name: str) -> Pair:
    call = Ping(place).call
    return Pair(call, call)


def _ping_bytes(place: Place, _name: str) -> Pair:
    call = Ping(place, way="bytes").call
    return Pair(call, call)


def _lock(place: Place, name: str) -> Pair:
    from bloomlock import Lock  # noqa: PLC0415 - only where it is measured

    lock = Lock(name, connect(place.url), LEASE, prefix=place.prefix)
    return Pair(lock.acquire, lock.release)


def _fair_lock(place: Place, name: str) -> Pair:
    from bloomlock import FairLock  # noqa: PLC0415 - only where it is measured

    lock = FairLock(name, connect(place.url), LEASE, prefix=place.prefix)
    return Pair(lock.acquire, lock.release)


def _redis_py(place: Place, name: str, sleep: float = 0.1) -> Pair:
    lock: Any = connect(place.url).lock(place.prefix + name, timeout=LEASE, sleep=sleep)
    return Pair(lock.acquire, lock.release)


def _redis_py_1ms(place: Place, name: str) -> Pair:
    return _redis_py(place, name, sleep=0.001)


def _python_redis_lock(place: Place, name: str) -> Pair:
    import redis_lock  # noqa: PLC0415 - may not be installed

    lock = redis_lock.Lock(connect(place.url), place.prefix + name, expire=LEASE)
    return Pair(lock.acquire, lock.release)


def _async_lock(client: redis.asyncio.Redis, place: Place, name: str) -> Pair:
    from bloomlock import AsyncLock  # noqa: PLC0415 - only where it is measured

    lock = AsyncLock(name, client, LEASE, prefix=place.prefix)
    return Pair(lock.acquire, lock.release)


def _redis_py_asyncio(client: redis.asyncio.Redis, place: Place, name: str) -> Pair:
    lock: Any = client.lock(place.prefix + name, timeout=LEASE)
    return Pair(lock.acquire, lock.release)


_MAKERS: dict[str, Callable[[Place, str], Pair]] = {
    "ping": _ping,
    "ping-bytes": _ping_bytes,
    "Lock": _lock,
    "FairLock": _fair_lock,
    "redis-py": _redis_py,
    "redis-py-1ms": _redis_py_1ms,
    "python-redis-lock": _python_redis_lock,
}
_TASK_MAKERS: dict[str, Callable[[redis.asyncio.Redis, Place, str], Pair]] = {
    "AsyncLock": _async_lock,
    "redis-py-asyncio": _redis_py_asyncio,
}
