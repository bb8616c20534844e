"""What a filter object for asyncio stands on: its client, its runtime, its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.keys import FilterKeys
from bloomlock.locks.async_watchdog import watchdog_of_loop
from bloomlock.runtime.clients import async_client, close_async_client
from bloomlock.runtime.tasks import Tasks, tasks_for

from .base import FilterBase
from .claim_session import Keeper
from .coalescing import Coalescer
from .state import FilterState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from types import TracebackType
    from typing import Self

    import redis.asyncio

    from bloomlock.effects import Core

    from .options import OpenOptions

    AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster | str | None

T = TypeVar("T")

ITEMS_PER_CHUNK = 2**14
"""Items of a batch are hashed and placed on the loop; this number takes some milliseconds."""


class AsyncConnectedFilter(FilterBase):
    """A filter object with a client for asyncio, which connects at the first use."""

    @classmethod
    def _of(cls, name: str, options: OpenOptions, client: AsyncClient) -> Self:
        """Return an object that is not attached yet."""
        made = cls.__new__(cls)
        made._start(name, options, client)  # noqa: SLF001 - a second constructor
        return made

    def _sibling(self, keys: FilterKeys, client: AsyncClient) -> Self:
        """Return an object of the same options that is not attached yet."""
        made = type(self).__new__(type(self))
        made._connect(self._state.sibling(keys), client)  # noqa: SLF001 - a second constructor
        return made

    async def _opened(self, keys: FilterKeys) -> Self:
        return await self._sibling(keys, self._client)._attach()  # noqa: SLF001

    def _start(self, name: str, options: OpenOptions, client: AsyncClient) -> None:
        state = FilterState(FilterKeys(name, options.prefix), options, options.wanted)
        self._connect(state, client)

    def _connect(self, state: FilterState, client: AsyncClient) -> None:
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

    async def _keeper(self) -> Keeper:
        return Keeper(await self._connected(), watchdog_of_loop())

    async def close(self) -> None:
        """Close the client if this object made it; calls not sent yet raise BloomlockError."""
        if self._coalescer is not None:
            self._coalescer.close()
            self._coalescer = None
        if self._runtime is not None and self._owns_client:
            await self._runtime.close_client()
        elif self._runtime is not None:
            await self._runtime.release_idle()

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


@asynccontextmanager
async def async_connected(client: AsyncClient) -> AsyncIterator[tuple[Any, Tasks]]:
    """Give a client and its runtime for some requests; close what is made for them."""
    made, owned = await async_client(client)
    try:
        yield made, tasks_for(made)
    finally:
        if owned:
            await close_async_client(made)
