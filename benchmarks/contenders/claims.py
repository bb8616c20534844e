"""Ways to work on an item once: claim it, work, and mark it as done.

`add` claims a new item and finishes it, `exists` claims one that is done. No work is between them.
`take` claims items, and returns what `finish` marks them as done by.
"""

from __future__ import annotations

import asyncio
import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import redis.asyncio

from benchmarks.jobs import on_loop
from benchmarks.place import Place, connect, parse_url
from benchmarks.workloads import cut
from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEASE = 60.0
KEPT_SECONDS = 86_400.0
"""How long idemkit keeps a finished key: its own default."""
AT_ONCE = 100
"""Requests that idemkit has under way at the same time: each has a connection."""


class _Scheme:
    def take(self, items: Sequence[str]) -> list[Any]:
        raise NotImplementedError

    def finish(self, handles: Sequence[Any]) -> object:
        raise NotImplementedError

    def add(self, item: str) -> bool:
        return self.add_many([item])[0]

    def exists(self, item: str) -> bool:
        return not self.add(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        handles = self.take(items)
        self.finish([handle for handle in handles if handle])
        return [bool(handle) for handle in handles]


class Claims(_Scheme):
    def __init__(self, place: Place, **options: Any) -> None:
        client = connect(place.url)
        self._filter = BloomFilter(**place.of_a_filter(), client=client, **options)

    def add(self, item: str) -> bool:
        with self._filter.claim(item) as claim:
            return bool(claim)

    def exists(self, item: str) -> bool:
        return self._filter.claim(item).state is ClaimState.SEEN

    def take(self, items: Sequence[str]) -> list[Any]:
        return list(self._filter.claim_many(items, LEASE))

    def finish(self, handles: Sequence[Any]) -> object:
        return self._filter.commit_many(handles)


class AsyncClaims(_Scheme):
    def __init__(self, place: Place) -> None:
        client = redis.asyncio.Redis(**parse_url(place.url))
        self._filter = AsyncBloomFilter(**place.of_a_filter(), client=client)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        return [on_loop(self._add(item)) for item in items]

    async def _add(self, item: str) -> bool:
        async with await self._filter.claim(item) as claim:
            return bool(claim)


class Idemkit(_Scheme):
    """The backend of idemkit: what its decorator and its consumer ask for; batches all at once."""

    def __init__(self, place: Place) -> None:
        idemkit: Any = import_module("idemkit")
        client = redis.asyncio.Redis(**parse_url(place.url))
        self._backend = idemkit.RedisBackend(client, namespace=place.key)

    def take(self, items: Sequence[str]) -> list[Any]:
        return _all(self._take, items)

    async def _take(self, item: str) -> tuple[str, str] | None:
        # What its decorator asks for: a digest of the arguments names them.
        digest = hashlib.sha256(item.encode()).hexdigest()
        claim = await self._backend.claim(item, digest, 1, LEASE)
        return None if claim.our_claim_token is None else (item, claim.our_claim_token)

    def finish(self, handles: Sequence[Any]) -> object:
        return _all(self._finish, handles)

    async def _finish(self, handle: tuple[str, str]) -> bool:
        return bool(await self._backend.complete(*handle, 200, {}, b"null", KEPT_SECONDS))


def _all(call: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    async def gathered() -> list[Any]:
        batches = cut(arguments, AT_ONCE)
        return [one for some in batches for one in await asyncio.gather(*map(call, some))]

    return list(on_loop(gathered()))


class LockAndSet(_Scheme):
    """A Lock of redis-py for each item, and a set of those that are done.

    It asks the set before the lock, which makes an item that is done cheap, and after it again:
    the item may have been done in between.
    """

    def __init__(self, place: Place) -> None:
        self._client = connect(place.url)
        self._done, self._lock = f"{place.key}:done", f"{place.key}:lock:"

    def take(self, items: Sequence[str]) -> list[Any]:
        return [self._take(item) for item in items]

    def _take(self, item: str) -> Any:
        if self._client.sismember(self._done, item):
            return None
        lock: Any = self._client.lock(self._lock + item, timeout=LEASE)
        if not lock.acquire(blocking=False):
            return None
        if self._client.sismember(self._done, item):
            lock.release()
            return None
        return item, lock

    def finish(self, handles: Sequence[Any]) -> object:
        for item, lock in handles:
            self._client.sadd(self._done, item)
            lock.release()
        return None
