"""Methods of filters as wholes: copies, unions, other names, when they expire."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bloomlock.errors import ConfigurationError
from bloomlock.keys import FilterKeys

from . import algebra, renaming, transfer
from .base import FilterBase
from .expiry import NEVER_MS, check_moment, check_ttl, moment_of, set_expiry, time_left
from .memory import MemoryBloomFilter
from .state import in_one_generation

if TYPE_CHECKING:
    from collections.abc import Generator
    from datetime import datetime, timedelta
    from typing import Self

    from bloomlock.effects import Core

    from .algebra import Progress
    from .generation import View
    from .state import FilterState


T = TypeVar("T")


class Run(Protocol):
    """Carries out cores."""

    def __call__(self, core: Core[T]) -> T:
        """Carry out a core and return its result."""


class WholeFilter(FilterBase):
    """What a BloomFilter has beside its methods for items."""

    _client: Any
    _run: Run

    def _start(self, state: FilterState, client: Any) -> None:
        raise NotImplementedError

    def update(self, items: Any) -> None:
        """See BloomFilter.update."""
        raise NotImplementedError

    def copy(self, name: str, *, progress: Progress | None = None) -> Self:
        """Copy the filter to a new name and return the copy, opened with the same client.

        What was added before the copy began is in it; what is added meanwhile may be.

        Args:
            name: A name that is free.
            progress: Called with how many shards are copied, and of how many.

        Raises:
            ConfigurationError: If the name is taken, or the server has not the memory.

        Cost: one round trip for each shard, for each 512 KiB of a shard above 8 MiB, and thirteen;
        of a filter that grows two more for each shard, and one. The server is done with each in
        some milliseconds. In a cluster, and where scripts are forbidden, the bitmap travels through
        this client, 1 MiB in one round trip each way.
        """
        keys = FilterKeys(name, self._state.keys.prefix)
        self._run(transfer.copy(self._state, keys, progress))
        return self._opened(keys)

    def _opened(self, keys: FilterKeys) -> Self:
        made = type(self).__new__(type(self))
        made._start(self._state.sibling(keys), self._client)  # noqa: SLF001 - our own class
        return made

    def union_update(self, other: WholeFilter, *, progress: Progress | None = None) -> None:
        """Add everything that another filter holds, while both are in use; `|=` does the same.

        When it returns, this filter holds every item whose `add` to either had returned before the
        call, and every item added to this one meanwhile. An item added to the other one meanwhile
        may be there. Until then each item of the other one may or may not be there.

        Args:
            other: A BloomFilter with the same parameters, on this server or on another one.
            progress: Called with how many bytes are done, and of how many.

        Raises:
            ConfigurationError: If the bits of an item are others there, and nothing is changed; or
                the server runs no scripts for this client.
            FilterLostError: If one of the filters is cleared or lost meanwhile, and its
                `on_lost="raise"`. Some bits may be merged; to repeat it is harmless, after any
                error.
            redis.exceptions.RedisError: If a server refused it or could not be reached.

        Cost: one round trip for each shard, or 512 KiB of a shard above 8 MiB, and five; the server
        is busy for 0.4 ms for each MiB (2 ms above 8 MiB), and with one step for less than 10 ms.
        In a cluster, and from another server, the bits travel through this client, 1 MiB in three
        round trips.

        >>> from bloomlock import BloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     seen = BloomFilter("seen", 1000, client=server.url)
        ...     more = BloomFilter("more", 1000, client=server.url)
        ...     more.update(["a", "b"])
        ...     seen |= more
        ...     "a" in seen
        True
        """
        self._run(algebra.update(self._state, self._other(other), progress))

    def __ior__(self, other: WholeFilter | MemoryBloomFilter) -> Self:
        """Add everything that another filter holds, as `update`."""
        if not isinstance(other, (WholeFilter, MemoryBloomFilter)):
            return NotImplemented
        self.update(other)
        return self

    def rename(self, name: str) -> Self:
        """Give the filter another name, and return it opened under that one.

        It keeps what it holds, its claims and its expiry, and gets a new generation. A client finds
        it under one of the names, never under both and never a part. Objects attached to the old
        name, this one as well, find it lost. A worker that has a claim cannot end it any more; its
        item is in `expired()` of the renamed filter when the lease is over.

        Args:
            name: A name that is free.

        Raises:
            ConfigurationError: If the name is taken, the filter is in a cluster, or the server runs
                no scripts for this client.
            FilterLostError: If the filter is cleared or lost.
            redis.exceptions.RedisError: If a server refused it or could not be reached.

        Cost: four round trips; one script with 0.02 ms of the server's time for each shard.

        >>> from bloomlock import BloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     pages = BloomFilter("pages", 1000, client=server.url)
        ...     pages.update(["a"])
        ...     seen = pages.rename("seen")
        ...     seen.name, seen.exists("a")
        ('seen', True)
        """
        keys, state = FilterKeys(name, self._state.keys.prefix), self._state
        view = self._run(state.current())
        try:
            self._run(renaming.rename(state.keys, keys, view.header))
        finally:
            state.forget()
        return self._opened(keys)

    def expire(self, ttl: float | timedelta) -> None:
        """Let the whole filter go after some time, an empty one too; a `clear` takes that back.

        Then it is as if it had been deleted: who is attached to it finds it lost, and who creates
        it gets an empty one. Never is a part of it taken for the whole.

        Args:
            ttl: Seconds from now by the server's clock, or a timedelta.

        Raises:
            ConfigurationError: If `ttl` is not usable, or the server runs no scripts for this
                client.
            FilterLostError: If the filter is gone already.
            redis.exceptions.RedisError: If a server refused it or could not be reached; it may be
                repeated.

        Cost: two round trips, three if there are several shards.

        >>> from bloomlock import BloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     pages = BloomFilter("pages", 1000, client=server.url)
        ...     pages.expire(60)
        ...     59 < pages.ttl() <= 60
        ...     pages.persist()
        ...     pages.ttl() is None
        True
        True
        """
        self._run(_expire(self._state, check_ttl("ttl", ttl)))

    def expire_at(self, at: float | datetime) -> None:
        """Let the whole filter go at a moment; see `expire`.

        Args:
            at: Seconds since 1970, or a datetime with a time zone, by the server's clock.

        Raises:
            ConfigurationError: As `expire`, or if the moment is over.

        Cost: one round trip more than `expire`.
        """
        self._run(_expire_at(self._state, at))

    def persist(self) -> None:
        """Take back what `expire` said. Errors and cost are those of `expire`."""
        self._run(_expire(self._state, NEVER_MS))

    def ttl(self) -> float | None:
        """Return in how many seconds the filter goes, None if it does not.

        Raises:
            FilterLostError: If it is gone already.

        Cost: one round trip.
        """
        return self._run(_ttl(self._state))

    def differences(self, other: WholeFilter) -> list[str]:
        """Return why the two cannot be combined: "parameter: ... here, ... there" for each.

        Cost: no round trip.
        """
        return algebra.differences(self._descriptor, self._other(other).state.descriptor)

    def _other(self, given: object) -> algebra.Other:
        if not isinstance(given, WholeFilter):
            raise ConfigurationError(f"other must be a {type(self).__name__}, not {given!r:.80}")
        return algebra.Other(given._state, given._run)  # noqa: SLF001 - our own class


class AsyncWholeFilter(FilterBase):
    """WholeFilter for asyncio."""

    _client: Any

    def _start(self, state: FilterState, client: Any) -> None:
        raise NotImplementedError

    async def _run(self, core: Core[T]) -> T:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        """See AsyncBloomFilter."""
        raise NotImplementedError

    async def copy(self, name: str, *, progress: Progress | None = None) -> Self:
        """Copy the filter to a new name and return the copy. See BloomFilter.copy."""
        keys = FilterKeys(name, self._state.keys.prefix)
        await self._run(transfer.copy(self._state, keys, progress))
        return await self._opened(keys)

    async def _opened(self, keys: FilterKeys) -> Self:
        made = type(self).__new__(type(self))
        made._start(self._state.sibling(keys), self._client)  # noqa: SLF001 - our own class
        return await made

    async def union_update(
        self, other: AsyncWholeFilter, *, progress: Progress | None = None
    ) -> None:
        """Add everything that another filter holds. See BloomFilter.union_update."""
        await self._run(algebra.update(self._state, self._other(other), progress))

    async def rename(self, name: str) -> Self:
        """Give the filter another name. See BloomFilter.rename."""
        keys, state = FilterKeys(name, self._state.keys.prefix), self._state
        view = await self._run(state.current())
        try:
            await self._run(renaming.rename(state.keys, keys, view.header))
        finally:
            state.forget()
        return await self._opened(keys)

    async def expire(self, ttl: float | timedelta) -> None:
        """Let the whole filter go after some time. See BloomFilter.expire."""
        await self._run(_expire(self._state, check_ttl("ttl", ttl)))

    async def expire_at(self, at: float | datetime) -> None:
        """Let the whole filter go at a moment; see BloomFilter.expire_at."""
        await self._run(_expire_at(self._state, at))

    async def persist(self) -> None:
        """Take back what `expire` said. See BloomFilter.persist."""
        await self._run(_expire(self._state, NEVER_MS))

    async def ttl(self) -> float | None:
        """Return in how many seconds the filter goes, None if it does not. See BloomFilter.ttl."""
        return await self._run(_ttl(self._state))

    def differences(self, other: AsyncWholeFilter) -> list[str]:
        """Return why the two, both attached, cannot be combined. See BloomFilter.differences."""
        return algebra.differences(self._descriptor, self._other(other).state.descriptor)

    def _other(self, given: object) -> algebra.Other:
        if not isinstance(given, AsyncWholeFilter):
            raise ConfigurationError(f"other must be a {type(self).__name__}, not {given!r:.80}")
        return algebra.Other(given._state, given._run)  # noqa: SLF001 - our own class


def _expire(state: FilterState, ttl_ms: int) -> Core[None]:
    """Let the filter expire in `ttl_ms`, or never (0)."""

    def work(view: View) -> Core[bool | None]:
        return (yield from set_expiry(state.keys, view, ttl_ms))

    yield from in_one_generation(state, work)


def _expire_at(state: FilterState, at: object) -> Core[None]:
    """Let the filter expire at a moment."""
    wanted = check_moment(at)
    view = yield from state.current()
    now = yield from moment_of(view)
    ttl_ms = math.ceil((wanted - now) * 1000)
    if ttl_ms <= 0:
        raise ConfigurationError(
            f"at must be a moment to come; by the server's clock {at!r:.80} is over"
        )
    yield from _expire(state, ttl_ms)


def _ttl(state: FilterState) -> Core[float | None]:
    """Return the seconds until the filter expires, None if it does not."""

    def work(view: View) -> Core[int | None]:
        return (yield from time_left(state.keys, view))

    left_ms = yield from in_one_generation(state, work)
    return None if left_ms < 0 else left_ms / 1000
