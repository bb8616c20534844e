"""One lock operated in each of the ways there are, so that they can be compared.

pure      the transitions, on a state in this process
scripts   the Lua scripts on a server
native    what the library does by itself: native commands where the server has them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from bloomlock.locks.protocol import model
from bloomlock.locks.protocol.model import (
    AcquireRequest,
    Busy,
    Granted,
    LockState,
    ReleaseRequest,
    read_record,
)
from bloomlock.locks.protocol.steps import LockSteps, Renewal, renew_all
from bloomlock.runtime.threads import threads_for

if TYPE_CHECKING:
    import redis

    from bloomlock.keys import LockKeys
    from bloomlock.locks.protocol.model import Announcement

LONG_AGO_MS = 1000
AGE_US = 60_000_000


class Picture(NamedTuple):
    """What can be compared of a lock's state."""

    value: bytes | None
    holders: frozenset[bytes]
    queue: tuple[bytes, ...]
    """Tokens of the waiters, first asked first."""


class Way(Protocol):
    """Operates one lock."""

    def acquire(self, asking: AcquireRequest) -> Granted | Busy: ...
    def release(self, leaving: ReleaseRequest) -> bool | None: ...
    def renew(self, token: bytes, group: bytes, lease_ms: int) -> bool: ...
    def picture(self) -> Picture: ...
    def leases(self) -> dict[bytes, int]:
        """Return what is left of the lease of the lock, under "", and of those who share it."""

    def expire(self) -> None:
        """Let the lease of the lock run out."""

    def expire_holder(self, token: bytes) -> None:
        """Let the lease of one of those who share the lock run out."""

    def kill_waiter(self, token: bytes) -> None:
        """Let a waiter not have been heard of for too long."""

    def age_waiters(self) -> None:
        """Let all who wait have asked long ago: who has not come back since counts as dead."""

    def forget_fence(self) -> None:
        """Let the last fence be forgotten."""


class PureWay:
    """The transitions on a state in this process, at the time that `now_us` tells."""

    def __init__(self) -> None:
        self.state = LockState()
        self.now_us = 0
        self.announced: list[Announcement] = []
        self.silent: set[bytes] = set()

    def acquire(self, asking: AcquireRequest) -> Granted | Busy:
        return model.acquire(self.state, self.now_us, asking, self.announced.append, self.hears)

    def release(self, leaving: ReleaseRequest) -> bool | None:
        return model.release(self.state, self.now_us, leaving, self.announced.append, self.hears)

    def hears(self, channel: bytes) -> bool:
        return channel not in self.silent

    def renew(self, token: bytes, group: bytes, lease_ms: int) -> bool:
        return model.renew(self.state, self.now_us, token, group, lease_ms)

    def picture(self) -> Picture:
        state, now_ms = self.state, self.now_us // 1000
        value = state.value if state.expires_ms > now_ms else None
        alive = frozenset(t for t, until in state.holders.items() if until > now_ms)
        shared = value is not None and value.startswith(b"=")
        return Picture(value, alive if shared else frozenset(), _tokens(state.in_order()))

    def leases(self) -> dict[bytes, int]:
        now_ms = self.now_us // 1000
        left = {b"": self.state.expires_ms - now_ms} if self.picture().value else {}
        shared = self.picture().holders
        return left | {token: self.state.holders[token] - now_ms for token in shared}

    def expire(self) -> None:
        self.state.expires_ms = 0

    def expire_holder(self, token: bytes) -> None:
        if token in self.state.holders:
            self.state.holders[token] = self.now_us // 1000 - LONG_AGO_MS

    def kill_waiter(self, token: bytes) -> None:
        for record in self.state.queue:
            if read_record(record).token == token:
                self.state.alive[record] = self.now_us // 1000 - LONG_AGO_MS

    def age_waiters(self) -> None:
        for record in self.state.queue:
            self.state.queue[record] -= AGE_US

    def forget_fence(self) -> None:
        self.state.fence = 0


class ServerWay:
    """The steps on a server, with what it may be asked to do."""

    def __init__(self, client: redis.Redis, keys: LockKeys, missing: set[str]) -> None:
        self.client = client
        self.keys = keys
        self.missing = missing
        self.steps = LockSteps(keys, missing)
        self._run = threads_for(client).run

    def acquire(self, asking: AcquireRequest) -> Granted | Busy:
        return self._run(self.steps.acquire(asking))

    def release(self, leaving: ReleaseRequest) -> bool | None:
        return self._run(self.steps.release(leaving, waiters=False))

    def renew(self, token: bytes, group: bytes, lease_ms: int) -> bool:
        [held] = self._run(renew_all([Renewal(self.keys, token, group, lease_ms)], self.missing))
        if isinstance(held, Exception):
            raise held
        return held

    def picture(self) -> Picture:
        value: bytes | None = self.client.get(self.keys.lock)
        shared = value is not None and value.startswith(b"=")
        now_ms = self._now_ms()
        holders = self.client.zrangebyscore(self.keys.holders, f"({now_ms}", "+inf")
        queue = self.client.zrange(self.keys.queue, 0, -1)
        return Picture(value, frozenset(holders if shared else ()), _tokens(queue))

    def leases(self) -> dict[bytes, int]:
        picture, now_ms = self.picture(), self._now_ms()
        left = {b"": self.client.pttl(self.keys.lock)} if picture.value else {}
        shared = picture.holders
        return left | {
            token: int(self.client.zscore(self.keys.holders, token)) - now_ms for token in shared
        }

    def expire(self) -> None:
        self.client.delete(self.keys.lock)

    def expire_holder(self, token: bytes) -> None:
        past = self._now_ms() - LONG_AGO_MS
        self.client.zadd(self.keys.holders, {token: past}, xx=True)

    def kill_waiter(self, token: bytes) -> None:
        for record in self.client.zrange(self.keys.queue, 0, -1):
            if read_record(record).token == token:
                self.client.zadd(self.keys.alive, {record: self._now_ms() - LONG_AGO_MS})

    def age_waiters(self) -> None:
        for record in self.client.zrange(self.keys.queue, 0, -1):
            self.client.zincrby(self.keys.queue, -AGE_US, record)

    def forget_fence(self) -> None:
        self.client.delete(self.keys.fence)

    def _now_ms(self) -> int:
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000


def _tokens(records: list[bytes]) -> tuple[bytes, ...]:
    return tuple(read_record(record).token for record in records)


WAYS = {
    "scripts": lambda: {"DELIFEQ", "DELEX"},
    "native": set,
}
"""What the server is taken to lack in each of the ways."""
