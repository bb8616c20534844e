"""The same for asyncio; see catalog.py."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from bloomlock.keys import DEFAULT_PREFIX, FilterKeys, meta_pattern
from bloomlock.runtime.clients import async_client
from bloomlock.runtime.tasks import tasks_for

from . import maintenance
from .catalog import KEYS_PER_SCAN, names_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .async_bloom import Client


async def async_list_filters(*, client: Client = None, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Return the names of all filters on the server, sorted. See list_filters.

    >>> import asyncio
    >>> from bloomlock import AsyncBloomFilter
    >>> from bloomlock.server import PrivateServer
    >>> async def main(url):
    ...     async with AsyncBloomFilter("pages", capacity=1000, client=url):
    ...         found = await async_list_filters(client=url)
    ...     gone = await async_delete_filter("pages", client=url)
    ...     return found, gone, await async_list_filters(client=url)
    >>> with PrivateServer() as server:
    ...     asyncio.run(main(server.url))
    (['pages'], True, [])
    """
    pattern = meta_pattern(prefix)
    async with _connected(client) as connected:
        found = connected.scan_iter(pattern, count=KEYS_PER_SCAN, _type="hash")
        return names_of([key async for key in found], prefix)


async def async_delete_filter(
    name: str, *, client: Client = None, prefix: str = DEFAULT_PREFIX
) -> bool:
    """Delete a filter, whole or not; True if there was anything of it. See delete_filter."""
    keys = FilterKeys(name, prefix)
    async with _connected(client) as connected:
        return await tasks_for(connected).run(maintenance.delete(keys))


@asynccontextmanager
async def _connected(client: Client) -> AsyncIterator[Any]:
    made, owned = await async_client(client)
    try:
        yield made
    finally:
        if owned:
            await made.aclose()
