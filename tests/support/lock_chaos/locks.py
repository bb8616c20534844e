"""The locks under test, behind one face: redis-py's and python-redis-lock as the controls."""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import TYPE_CHECKING, Any, cast

import redis

import bloomlock
from lock_chaos.history import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "chaos"


class ForeignError(Exception):
    """What python-redis-lock says; its own errors are mere RuntimeErrors."""


class Adapter:
    """One lock object of a worker; everything is awaited, though most of it blocks.

    Args:
        url: Where the server is.
        ttl: Lease in seconds.
        told: Called when the lock says, by itself, that it was lost.
        options: Further arguments of its class.
    """

    shared = False

    def __init__(
        self, url: str, ttl: float, told: Callable[[], None], options: dict[str, Any]
    ) -> None:
        self.lock = self._make(url, ttl, lambda _: told(), options)

    def _make(
        self, url: str, ttl: float, on_lost: Callable[[Any], None], options: dict[str, Any]
    ) -> Any:
        raise NotImplementedError

    async def acquire(self, within: float) -> bool:
        raise NotImplementedError

    async def release(self) -> None:
        raise NotImplementedError

    async def extend(self, ttl: float) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise if the hold is known to be lost."""

    def until(self) -> int:
        """Return the end of what the holder believes in now."""
        return FOREVER

    @property
    def fence(self) -> int | None:
        return None

    @property
    def token(self) -> str | None:
        return None


class Own(Adapter):
    """Ours for threads."""

    def _make(
        self, url: str, ttl: float, on_lost: Callable[[Any], None], options: dict[str, Any]
    ) -> Any:
        made = getattr(bloomlock, options.pop("kind"))
        return made(NAME, client=url, ttl=ttl, on_lost=on_lost, **options)

    async def acquire(self, within: float) -> bool:
        return bool(self.lock.acquire(timeout=within))

    async def release(self) -> None:
        self.lock.release()

    async def extend(self, ttl: float) -> None:
        self.lock.extend(ttl)

    def check(self) -> None:
        self.lock.check()

    def until(self) -> int:
        asked = time.monotonic_ns()
        remaining = self.lock.remaining()
        # An answer that came too late was never believed in, not even since the last look at the
        # clock.
        return asked + int(remaining * 1e9) if remaining else 0

    @property
    def fence(self) -> int | None:
        return cast("int | None", self.lock.fence)

    @property
    def token(self) -> str | None:
        return cast("str | None", self.lock.token)


class Reading(Own):
    """The reader's side of ours."""

    shared = True

    def _make(self, *given: Any) -> Any:
        return super()._make(*given).read


class Writing(Own):
    """The writer's side of ours."""

    def _make(self, *given: Any) -> Any:
        return super()._make(*given).write


class Several(Own):
    """Ours over several servers, whose URLs stand in one, with spaces between them."""

    def _make(
        self, url: str, ttl: float, on_lost: Callable[[Any], None], options: dict[str, Any]
    ) -> Any:
        made = getattr(bloomlock, options.pop("kind"))
        return made(NAME, clients=url.split(), ttl=ttl, on_lost=on_lost, **options)


class Awaited(Own):
    """Ours for asyncio."""

    async def acquire(self, within: float) -> bool:
        return bool(await self.lock.acquire(timeout=within))

    async def release(self) -> None:
        await self.lock.release()

    async def extend(self, ttl: float) -> None:
        await self.lock.extend(ttl)


class AwaitedSeveral(Awaited, Several):
    """Ours for asyncio over several servers."""


class RedisPy(Adapter):
    """redis-py's: a lease that its holder cannot see, so it is valid until release says no."""

    def _make(
        self, url: str, ttl: float, on_lost: Callable[[Any], None], options: dict[str, Any]
    ) -> Any:
        del on_lost  # it would not be told
        return client_of(url, options).lock(options.pop("name", NAME), timeout=ttl, **options)

    async def acquire(self, within: float) -> bool:
        return bool(self.lock.acquire(blocking_timeout=None if within < 0 else within))

    async def release(self) -> None:
        self.lock.release()

    @property
    def token(self) -> str | None:
        token = self.lock.local.token
        return None if token is None else token.decode()


class PythonRedisLock(Adapter):
    """python-redis-lock: renewed by a thread of its own; its holder is told by release."""

    def _make(
        self, url: str, ttl: float, on_lost: Callable[[Any], None], options: dict[str, Any]
    ) -> Any:
        del on_lost  # it would not be told
        # Not everywhere installed, and without types.
        made = importlib.import_module("redis_lock").Lock
        return made(client_of(url, options), NAME, expire=ttl, **options)

    async def acquire(self, within: float) -> bool:
        with _renamed():
            return bool(self.lock.acquire(timeout=None if within < 0 else within))

    async def release(self) -> None:
        with _renamed():
            self.lock.release()

    @property
    def token(self) -> str | None:
        return str(self.lock.id)


@contextlib.contextmanager
def _renamed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ForeignError(type(error).__name__) from error


def client_of(url: str, options: dict[str, Any]) -> redis.Redis:
    """Return a client that does not retry, or with `retries` one as `redis.Redis()` makes it."""
    if options.pop("retries", False):
        return redis.Redis(unix_socket_path=url.removeprefix("unix://"))
    return redis.Redis.from_url(url)


KINDS: dict[str, tuple[type[Adapter], dict[str, Any]]] = {
    "lock": (Own, {"kind": "Lock"}),
    "fair": (Own, {"kind": "FairLock"}),
    "reentrant": (Own, {"kind": "ReentrantLock"}),
    "read": (Reading, {"kind": "ReadWriteLock"}),
    "write": (Writing, {"kind": "ReadWriteLock"}),
    "async": (Awaited, {"kind": "AsyncLock"}),
    "redlock": (Several, {"kind": "Redlock"}),
    "async redlock": (AwaitedSeveral, {"kind": "AsyncRedlock"}),
    "redis-py": (RedisPy, {}),
    "python-redis-lock": (PythonRedisLock, {}),
}


def make(
    kind: str, url: str, ttl: float, told: Callable[[], None], options: dict[str, Any]
) -> Adapter:
    """Return a lock of this kind."""
    adapter, own = KINDS[kind]
    return adapter(url, ttl, told, own | options)
