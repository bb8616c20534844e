"""The road to a lock, step 11: a majority of independent servers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import redis

from road.steps import OwnerLua

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis


class Majority:
    """Step 11a: a client that has the lock on more than half of the servers holds it."""

    def __init__(self, servers: Iterable[Redis], key: str, lease: float = 30.0) -> None:
        self.lease = lease
        self.locks = [OwnerLua(r, key, lease) for r in servers]

    @property
    def held(self) -> bool:
        return sum(lock.held for lock in self.locks) > len(self.locks) / 2

    def acquire(self) -> bool:
        for lock in self.locks:
            with contextlib.suppress(redis.ConnectionError):
                if self.may_vote(lock.r):
                    lock.acquire()
        if not self.held:
            self.release()
        return self.held

    def may_vote(self, _server: Redis) -> bool:
        return True  # also if it was restarted, and has forgotten what it granted

    def release(self) -> None:
        for lock in self.locks:
            with contextlib.suppress(redis.ConnectionError):
                lock.release()


class DelayedRestart(Majority):
    """Step 11b: a restarted server has no vote until all that it may have granted is over."""

    def may_vote(self, server: Redis) -> bool:
        return bool(server.info("server")["uptime_in_seconds"] > self.lease)
