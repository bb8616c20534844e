"""The client and the runtime of a filter object, and how they are closed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from bloomlock.effects import shorten_traceback
from bloomlock.filters.coalescing import Coalescer
from bloomlock.filters.inspection import FilterBase
from bloomlock.filters.state import FilterState
from bloomlock.runtime._async.clients import async_client_of, async_close_client
from bloomlock.runtime._async.driver import AsyncDriver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

    import redis.asyncio

    from bloomlock.effects import Core
    from bloomlock.filters.options import FilterOptions
    from bloomlock.keys import FilterKeys

    AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster | str | None

T = TypeVar("T")

if True:  # ASYNC
    ITEMS_PER_CHUNK = 2**14
    """Items of a batch are hashed and placed on the loop; this number takes some milliseconds."""


class AsyncConnectedFilter(FilterBase):
    """A filter object with a client; one for asyncio connects at the first use."""

    @classmethod
    def _of(cls, name: str, options: FilterOptions, client: AsyncClient) -> Self:
        """Return an object that is not attached yet."""
        made = cls.__new__(cls)
        made._connect(FilterState.of(name, options), client)
        return made

    def _sibling(self, keys: FilterKeys, client: AsyncClient) -> Self:
        """Return an object of the same options that is not attached yet."""
        made = type(self).__new__(type(self))
        made._connect(FilterState(keys, self._state.options, None), client)
        return made

    async def _attach(self, making: Core[Any] | None = None) -> Self:
        """Attach, or carry out what makes the filter and does so; close the object if it fails."""
        try:
            await self._run(self._state.attach() if making is None else making)
        except BaseException:
            await self.close()
            raise
        return self

    if True:  # ASYNC

        def _connect(self, state: FilterState, client: AsyncClient) -> None:
            state.items_per_chunk = ITEMS_PER_CHUNK
            self._state = state
            self._client = client
            self._owns_client = False
            self._runtime: AsyncDriver | None = None
            self._coalescer: Coalescer | None = None

        async def _connected(self) -> AsyncDriver:
            if self._runtime is None:
                made, owned = await async_client_of(self._client)
                if self._runtime is None:
                    self._client, self._owns_client = made, owned
                    self._state.runtime = self._runtime = AsyncDriver.of(made)
                elif owned:
                    # Another task was faster while this one connected.
                    await async_close_client(made)
            return self._runtime

        def _calls(self) -> Coalescer:
            found = self._coalescer
            if found is None or found.loop is not asyncio.get_running_loop():
                found = self._coalescer = Coalescer(self._state, self._run)
            return found

        async def _run(self, core: Core[T]) -> T:
            return await (await self._connected()).run(core)

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

    else:

        def _connect(self, state: FilterState, client: AsyncClient) -> None:
            self._state = state
            self._client, self._owns_client = async_client_of(client)
            state.runtime = self._runtime = AsyncDriver.of(self._client)
            self._run = self._runtime.run

        def close(self) -> None:
            """Give back the connections; closes the client only if this object made it."""
            self._runtime.close()
            if self._owns_client:
                self._client.close()

        def __enter__(self) -> Self:
            """Return the filter itself."""
            return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()


@asynccontextmanager
async def async_connected(client: AsyncClient) -> AsyncIterator[tuple[Any, Any]]:
    """Give a client and its runtime for some requests; close what is made for them."""
    made, owned = await async_client_of(client)
    runtime = AsyncDriver.of(made)
    try:
        yield made, runtime
    except (RedisError, OSError) as error:
        shorten_traceback(error)
        raise
    finally:
        if True:  # ASYNC
            if owned:
                await async_close_client(made)
        else:
            runtime.close()
            if owned:
                made.close()
