"""Filters by name, without attaching to one: which there are, and deleting one, broken or not."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from bloomlock.keys import DEFAULT_PREFIX, FilterKeys, meta_pattern, name_of
from bloomlock.runtime.clients import async_client, close_async_client, sync_client
from bloomlock.runtime.tasks import tasks_for
from bloomlock.runtime.threads import threads_for

from . import lifecycle, renaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from .async_bloom import Client as AsyncClient
    from .bloom import Client


KEYS_PER_SCAN = 1000


def list_filters(*, client: Client = None, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Return the names of all filters on the server, sorted; also of broken ones.

    Args:
        client: As for BloomFilter.
        prefix: Start of the keys of the filters.

    Raises:
        ConfigurationError: If a parameter is not usable.
        ServerError: If the URL does not answer as a Redis server.

    Cost: the server looks at all its keys, whatever they are, 1000 in one round trip.

    >>> from bloomlock import BloomFilter
    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     _ = BloomFilter("pages", capacity=1000, client=server.url)
    ...     found = list_filters(client=server.url)
    ...     gone = delete_filter("pages", client=server.url)
    ...     found, gone, list_filters(client=server.url)
    (['pages'], True, [])
    """
    pattern = meta_pattern(prefix)
    with _connected(client) as connected:
        found = connected.scan_iter(pattern, count=KEYS_PER_SCAN, _type="hash")
        return names_of(found, prefix)


def names_of(keys: Iterable[str | bytes], prefix: str) -> list[str]:
    """Return the names of the filters whose descriptors these are, sorted."""
    texts = (key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys)
    names = {name_of(text, prefix) for text in texts}
    return sorted(name for name in names if name is not None)


def delete_filter(name: str, *, client: Client = None, prefix: str = DEFAULT_PREFIX) -> bool:
    """Delete a filter that need not be whole, such as one whose bitmap was evicted.

    Args:
        name: The filter's name.
        client: As for BloomFilter.
        prefix: Start of its keys.

    Returns:
        True if there was anything of it.

    Raises:
        FilterMismatchError: If what is stored there is no filter, or one of another format;
            nothing is deleted then.
        ConfigurationError, ServerError: As `list_filters`.

    Cost: two round trips, three if there are several shards, and one more if the descriptor is
    damaged.
    """
    keys = FilterKeys(name, prefix)
    with _connected(client) as connected:
        runtime = threads_for(connected)
        try:
            return runtime.run(lifecycle.delete(keys))
        finally:
            runtime.close()


def rename_filter(
    name: str, new_name: str, *, client: Client = None, prefix: str = DEFAULT_PREFIX
) -> None:
    """Give a filter another name without attaching to it.

    Args:
        name: The filter's name.
        new_name: A name that is free.
        client: As for BloomFilter.
        prefix: Start of its keys.

    Raises:
        FilterNotFoundError: If there is no filter of that name.
        ConfigurationError: If the new name is taken, or the filter is in a cluster.
        And as `BloomFilter.rename`.

    Cost: as `BloomFilter.rename`.
    """
    old, new = FilterKeys(name, prefix), FilterKeys(new_name, prefix)
    with _connected(client) as connected:
        runtime = threads_for(connected)
        try:
            runtime.run(renaming.rename(old, new))
        finally:
            runtime.close()


@contextmanager
def _connected(client: Client) -> Iterator[Any]:
    made, owned = sync_client(client)
    try:
        yield made
    finally:
        if owned:
            made.close()


async def async_list_filters(
    *, client: AsyncClient = None, prefix: str = DEFAULT_PREFIX
) -> list[str]:
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
    async with _async_connected(client) as connected:
        found = connected.scan_iter(pattern, count=KEYS_PER_SCAN, _type="hash")
        return names_of([key async for key in found], prefix)


async def async_delete_filter(
    name: str, *, client: AsyncClient = None, prefix: str = DEFAULT_PREFIX
) -> bool:
    """Delete a filter, whole or not; True if there was anything of it. See delete_filter."""
    keys = FilterKeys(name, prefix)
    async with _async_connected(client) as connected:
        return await tasks_for(connected).run(lifecycle.delete(keys))


async def async_rename_filter(
    name: str, new_name: str, *, client: AsyncClient = None, prefix: str = DEFAULT_PREFIX
) -> None:
    """Give a filter another name without attaching to it. See rename_filter."""
    old, new = FilterKeys(name, prefix), FilterKeys(new_name, prefix)
    async with _async_connected(client) as connected:
        await tasks_for(connected).run(renaming.rename(old, new))


@asynccontextmanager
async def _async_connected(client: AsyncClient) -> AsyncIterator[Any]:
    made, owned = await async_client(client)
    try:
        yield made
    finally:
        if owned:
            await close_async_client(made)
