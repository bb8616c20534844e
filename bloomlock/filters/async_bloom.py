"""AsyncBloomFilter: the same filter for asyncio, over the same cores."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from bloomlock.keys import FilterKeys
from bloomlock.locks.async_watchdog import watchdog_of_loop
from bloomlock.runtime.clients import async_client, close_async_client
from bloomlock.runtime.tasks import Tasks, tasks_for

from . import algebra, answers, discards, inspection, lifecycle, scripted, transfer
from .claim_session import Keeper
from .claimable import AsyncClaimableFilter
from .coalescing import Coalescer
from .memory import MemoryBloomFilter
from .options import FilterOptions, OpenOptions
from .portable import AsyncPortableFilter
from .rebuilding import AsyncRebuildableFilter
from .state import FilterState
from .whole import AsyncWholeFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable, Sequence
    from types import TracebackType
    from typing import Any, Self, Unpack

    import redis.asyncio

    from bloomlock.effects import Core

    from .batches import Route
    from .inspection import FilterInfo
    from .options import FilterParameters, OpenParameters

    Client = redis.asyncio.Redis | redis.asyncio.RedisCluster | str | None

Item = TypeVar("Item", bound=str | bytes)
T = TypeVar("T")

ITEMS_PER_CHUNK = 2**14
"""Items of a batch are hashed and placed on the loop; this number takes some milliseconds."""


class AsyncBloomFilter(
    AsyncClaimableFilter, AsyncWholeFilter, AsyncPortableFilter, AsyncRebuildableFilter
):
    """BloomFilter for asyncio: the same parameters, the same methods, awaited.

    The filter is created or attached to at the first use, or by `await`ing the object itself.
    What a BloomFilter wrote is read by it, and the other way round.

    `add`s and `exists`s that wait at the same time go out together, in order, each with its own
    answer; a call that is alone is sent at once. One that is cancelled harms no other.

    Args:
        client: A client of redis.asyncio (standalone, Sentinel or Cluster), a URL, or None, as
            for BloomFilter; used on one event loop at a time.
        name, capacity, error_rate, **options: As for BloomFilter.

    >>> import asyncio
    >>> from bloomlock.server import PrivateServer
    >>> async def main(url):
    ...     async with AsyncBloomFilter("pages", capacity=1000, client=url) as pages:
    ...         first = await asyncio.gather(pages.add("a"), pages.add("a"))
    ...         return sorted(first), await pages.exists("a"), await pages.count()
    >>> with PrivateServer() as server:
    ...     asyncio.run(main(server.url))
    ([False, True], True, 1)
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        error_rate: float = 1e-6,
        *,
        client: Client = None,
        **options: Unpack[FilterParameters],
    ) -> None:
        """Check the parameters; the first awaited use connects."""
        checked = FilterOptions(capacity=capacity, error_rate=error_rate, **options)
        keys = FilterKeys(name, checked.prefix)
        self._start(FilterState(keys, checked, checked.wanted), client)

    @classmethod
    async def open(
        cls, name: str, *, client: Client = None, **options: Unpack[OpenParameters]
    ) -> Self:
        """Attach to a filter that exists; see BloomFilter.open."""
        checked = OpenOptions(**options)
        made = cls.__new__(cls)
        state = FilterState(FilterKeys(name, checked.prefix), checked, None)
        made._start(state, client)  # noqa: SLF001 - a second constructor
        return await made

    def _start(self, state: FilterState, client: Client) -> None:
        self._connect(state, client)

    def _connect(self, state: FilterState, client: Client) -> None:
        state.items_per_chunk = ITEMS_PER_CHUNK
        self._state = state
        self._client = client
        self._owns_client = False
        self._runtime: Tasks | None = None
        self._coalescer: Coalescer | None = None

    def _calls(self) -> Coalescer:
        """Return what carries out single calls on the running loop."""
        found = self._coalescer
        if found is None or found.loop is not asyncio.get_running_loop():
            found = self._coalescer = Coalescer(self._state, self._run)
        return found

    async def _run(self, core: Core[T]) -> T:
        return await (await self._connected()).run(core)

    async def _connected(self) -> Tasks:
        if self._runtime is None:
            made, owned = await async_client(self._client)
            if self._runtime is None:
                self._client, self._owns_client = made, owned
                self._runtime = tasks_for(made)
            elif owned:
                # Another task was faster while this one connected.
                await close_async_client(made)
        return self._runtime

    async def _attach(self) -> Self:
        try:
            await self._run(self._state.attach())
        except BaseException:
            await self.close()
            raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Create the filter or attach to it now, and return it."""
        return self._attach().__await__()

    async def add(self, item: str | bytes) -> bool:
        """Add an item; True if it is new. See BloomFilter.add.

        Cost: as BloomFilter.add when alone; concurrent calls share their round trips.
        """
        if (near := self._state.near) is not None and near.knows(item):
            return False
        return await self._calls().call(item, write=True)

    async def exists(self, item: str | bytes) -> bool:
        """Return whether an item was added. See BloomFilter.exists."""
        if (near := self._state.near) is not None and near.knows(item):
            return True
        return await self._calls().call(item, write=False)

    def is_kept(self, item: str | bytes) -> bool:
        """Return whether the near-cache knows an item; `add` and `exists` ask no server then.

        Cost: no round trip.
        """
        return (near := self._state.near) is not None and near.knows(item)

    def kept_many(self, items: Sequence[Item]) -> list[bool]:
        """Return for each item whether the near-cache knows it; see `is_kept`.

        Cost: no round trip.
        """
        near = self._state.near
        return [False] * len(items) if near is None else near.known(items)

    async def add_many(self, items: Iterable[str | bytes], *, route: Route = "auto") -> list[bool]:
        """Add many items, at most 16,384 at once; one answer for each. See BloomFilter.add_many."""
        return await self._run(answers.add_many(self._state, items, route))

    def add_each(
        self, items: Iterable[Item], *, route: Route = "auto", batch_size: int | None = None
    ) -> AsyncIterator[tuple[Item, bool]]:
        """Add items of a stream; yield each with its answer. See BloomFilter.add_each."""
        return self._each(answers.Stream(self._state, items, route, batch_size))

    async def _each(self, stream: answers.Stream) -> AsyncIterator[tuple[Any, bool]]:
        while answered := await self._run(stream.add_next()):
            for one in answered:
                yield one

    async def exists_many(
        self, items: Iterable[str | bytes], *, route: Route = "auto"
    ) -> list[bool]:
        """Test many items; one answer for each. See BloomFilter.exists_many."""
        return await self._run(answers.exists_many(self._state, items, route))

    async def update(
        self,
        items: Iterable[str | bytes] | MemoryBloomFilter | AsyncBloomFilter,
        *,
        route: Route = "auto",
    ) -> None:
        """Add many items without asking which are new. See BloomFilter.update."""
        if isinstance(items, MemoryBloomFilter):
            await self._run(transfer.merge(self._state, items))
        elif isinstance(items, AsyncBloomFilter):
            await self._run(algebra.update(self._state, self._other(items)))
        else:
            await self._run(answers.update(self._state, items, route))

    async def discard(self, item: str | bytes) -> bool:
        """Forget an item; True if it was there. See BloomFilter.discard."""
        return await self._run(discards.discard(self._state, item))

    async def remove(self, item: str | bytes) -> None:
        """Forget an item, or raise KeyError. See BloomFilter.remove."""
        await self._run(discards.remove(self._state, item))

    async def discard_many(self, items: Iterable[str | bytes]) -> list[bool]:
        """Forget many items; for each whether it was there. See BloomFilter.discard_many."""
        return await self._run(discards.discard_many(self._state, items))

    async def run_script(
        self,
        script: str,
        items: Iterable[str | bytes] = (),
        keys: Sequence[str] = (),
        args: Sequence[str | bytes | int] = (),
    ) -> Any:
        """Run a Lua script that tests and adds items. See BloomFilter.run_script."""
        return await self._run(scripted.run_script(self._state, script, items, keys, args))

    async def _keeper(self) -> Keeper:
        return Keeper(await self._connected(), watchdog_of_loop())

    async def to_memory(self) -> MemoryBloomFilter:
        """Return the bits as a filter in this process. See BloomFilter.to_memory."""
        return await self._run(transfer.fetch(self._state))

    async def count(self) -> int:
        """Return the estimated number of distinct items. See BloomFilter.count."""
        return await self._run(inspection.count(self._state))

    async def info(self) -> FilterInfo:
        """Return all parameters, fill and memory. See BloomFilter.info."""
        return await self._run(inspection.info(self._state))

    async def clear(self) -> None:
        """Empty the filter for all clients. See BloomFilter.clear."""
        await self._run(self._state.clear())

    async def delete(self) -> bool:
        """Delete the filter; True if there was one. See BloomFilter.delete."""
        try:
            return await self._run(lifecycle.delete(self._state.keys))
        finally:
            self._state.forget()

    async def reattach(self) -> None:
        """Go on with the filter as it is on the server now. See BloomFilter.reattach."""
        await self._run(self._state.attach())

    async def close(self) -> None:
        """Close the client if this object made it; calls not sent yet raise BloomlockError."""
        if self._coalescer is not None:
            self._coalescer.close()
            self._coalescer = None
        if self._runtime is not None and self._owns_client:
            await self._runtime.close_client()

    async def __aenter__(self) -> Self:
        """Create the filter or attach to it, unless that was done."""
        return self if self._state.view is not None else await self._attach()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()
