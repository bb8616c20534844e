"""Ways to work on an item once: claim it, work, and mark it as done.

`add` claims a new item and finishes it, `exists` claims one that is done. No work is between them.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import redis.asyncio
import redis.exceptions

from benchmarks.jobs import cut
from benchmarks.place import Place, connect, parse_url
from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState

from .base import Contender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

LEASE = 60.0
KEPT_SECONDS = 86_400.0
"""How long idemkit keeps a finished key: its own default."""
AT_ONCE = 100
"""Requests that idemkit has under way at the same time: each has a connection."""


class Taken(NamedTuple):
    """What became of the claim of one item.

    Attributes:
        state: "new", "seen" or "busy".
        handle: What finishes it, where it is new.
    """

    state: str
    handle: Any = None


class Scheme(Contender):
    """A way to claim and finish items."""

    @abstractmethod
    def take(self, items: Sequence[str], lease: float = LEASE) -> list[Taken]:
        """Claim items."""

    @abstractmethod
    def finish(self, handles: Sequence[Any]) -> list[bool]:
        """Mark items as done; False: the claim was lost."""

    @abstractmethod
    def left(self) -> int:
        """Return how many claims are open."""

    def add(self, item: str) -> bool:
        return self.add_many([item])[0]

    def exists(self, item: str) -> bool:
        return self.take([item])[0].state == "seen"

    def add_many(self, items: Sequence[str]) -> list[bool]:
        taken = self.take(items)
        self.finish([one.handle for one in taken if one.state == "new"])
        return [one.state == "new" for one in taken]

    def clear(self) -> None:
        """Do nothing: no case here begins anew."""


class Claims(Scheme):
    """A BloomFilter's claims; all options are the filter's own."""

    def __init__(self, place: Place, **options: Any) -> None:
        self._filter = BloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=connect(place.url),
            prefix=place.prefix,
            **options,
        )

    def add(self, item: str) -> bool:
        with self._filter.claim(item) as claim:
            return bool(claim)

    def exists(self, item: str) -> bool:
        return self._filter.claim(item).state is ClaimState.SEEN

    def take(self, items: Sequence[str], lease: float = LEASE) -> list[Taken]:
        return [Taken(str(one.state), one) for one in self._filter.claim_many(items, lease)]

    def finish(self, handles: Sequence[Any]) -> list[bool]:
        return self._filter.commit_many(handles)

    def left(self) -> int:
        return self._filter.info().claims.open


class _Tasks:
    """Runs coroutines one after the other on a loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


class AsyncClaims(Contender):
    """Claims of an AsyncBloomFilter, one after the other."""

    def __init__(self, place: Place, **options: Any) -> None:
        self._tasks = _Tasks()
        self._filter = AsyncBloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=_asyncio_client(place.url),
            prefix=place.prefix,
            **options,
        )

    def add(self, item: str) -> bool:
        return bool(self._tasks.run(self._add(item)))

    async def _add(self, item: str) -> bool:
        async with await self._filter.claim(item) as claim:
            return bool(claim)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        answers: list[bool] = self._tasks.run(self._add_many(items))
        return answers

    async def _add_many(self, items: Sequence[str]) -> list[bool]:
        made = await self._filter.claim_many(items)
        await self._filter.commit_many([claim for claim in made if claim])
        return [bool(claim) for claim in made]

    def exists(self, item: str) -> bool:
        claim: Any = self._tasks.run(self._filter.claim(item))
        return claim.state is ClaimState.SEEN

    def clear(self) -> None:
        """Do nothing, as in Scheme."""


class Idemkit(Scheme):
    """The backend of idemkit: what its decorator and its consumer ask for; batches all at once."""

    def __init__(self, place: Place) -> None:
        self._tasks = _Tasks()
        self._backend = _idemkit_backend(place)
        self._client = connect(place.url)
        self._pattern = f"{place.key}:*"

    def add(self, item: str) -> bool:
        return bool(self._tasks.run(self._add(item)))

    async def _add(self, item: str) -> bool:
        taken = await self._take(item, LEASE)
        return taken.state == "new" and await self._finish(taken.handle)

    async def _take(self, item: str, lease: float) -> Taken:
        # What its decorator asks for: a digest of the arguments names them.
        digest = hashlib.sha256(item.encode()).hexdigest()
        claim = await self._backend.claim(item, digest, 1, lease)
        if claim.our_claim_token is not None:
            return Taken("new", (item, claim.our_claim_token))
        return Taken("seen" if claim.result.name == "ALREADY_COMPLETED" else "busy")

    async def _finish(self, handle: tuple[str, str]) -> bool:
        done = await self._backend.complete(*handle, 200, {}, b"null", KEPT_SECONDS)
        return bool(done)

    def take(self, items: Sequence[str], lease: float = LEASE) -> list[Taken]:
        made: list[Taken] = self._all(lambda item: self._take(item, lease), items)
        return made

    def finish(self, handles: Sequence[Any]) -> list[bool]:
        done: list[bool] = self._all(self._finish, handles)
        return done

    def _all(self, call: Callable[[Any], Awaitable[Any]], arguments: Sequence[Any]) -> list[Any]:
        async def gathered() -> list[Any]:
            found: list[Any] = []
            for some in cut(arguments, AT_ONCE):
                found += await asyncio.gather(*map(call, some))
            return found

        answers: list[Any] = self._tasks.run(gathered())
        return answers

    def left(self) -> int:
        keys = self._client.scan_iter(match=self._pattern, count=1000)
        stored: Any = (self._client.get(key) for key in keys)
        return sum(b'"CLAIMED"' in one for one in stored if one)


class IdemkitDecorator(Contender):
    """A function under idemkit's decorator, which keeps its result."""

    def __init__(self, place: Place) -> None:
        idemkit: Any = import_module("idemkit")
        self._tasks = _Tasks()
        self._worked = 0

        async def work(item: str) -> None:  # noqa: ARG001 - the key
            self._worked += 1

        config = idemkit.MethodConfig(key_fields=["item"])
        self._work = idemkit.idempotent(backend=_idemkit_backend(place), config=config)(work)

    def add(self, item: str) -> bool:
        before = self._worked
        self._tasks.run(self._work(item))
        return self._worked > before

    def exists(self, item: str) -> bool:
        return not self.add(item)

    def clear(self) -> None:
        """Do nothing, as in Scheme."""


class LockAndSet(Scheme):
    """A Lock of redis-py for each item, and a set of those that are done.

    It asks the set before the lock, which makes an item that is done cheap, and after it again:
    the item may have been done in between.
    """

    def __init__(self, place: Place) -> None:
        self._client = connect(place.url)
        self._done = f"{place.key}:done"
        self._lock = f"{place.key}:lock:"

    def take(self, items: Sequence[str], lease: float = LEASE) -> list[Taken]:
        return [self._take(item, lease) for item in items]

    def _take(self, item: str, lease: float) -> Taken:
        if self._client.sismember(self._done, item):
            return Taken("seen")
        lock: Any = self._client.lock(self._lock + item, timeout=lease)
        if not lock.acquire(blocking=False):
            return Taken("busy")
        if self._client.sismember(self._done, item):
            lock.release()
            return Taken("seen")
        return Taken("new", (item, lock))

    def finish(self, handles: Sequence[Any]) -> list[bool]:
        return [self._finish(item, lock) for item, lock in handles]

    def _finish(self, item: str, lock: Any) -> bool:
        self._client.sadd(self._done, item)
        try:
            lock.release()
        except redis.exceptions.LockError:
            return False
        return True

    def left(self) -> int:
        return sum(1 for _ in self._client.scan_iter(match=self._lock + "*", count=1000))


def _asyncio_client(url: str) -> redis.asyncio.Redis:
    """Return a client with redis-py's default retries, as `connect` does."""
    options = parse_url(url)
    if "path" in options:
        options["unix_socket_path"] = options.pop("path")
    options.pop("connection_class", None)
    return redis.asyncio.Redis(**options)


def _idemkit_backend(place: Place) -> Any:
    idemkit: Any = import_module("idemkit")
    return idemkit.RedisBackend(_asyncio_client(place.url), namespace=place.key)
