"""Filters by name, without attaching to one: which there are, and deleting one, broken or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.filters import switch
from bloomlock.keys import DEFAULT_PREFIX, FilterKeys, meta_pattern, name_of

from .connected import async_connected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .connected import AsyncClient


KEYS_PER_SCAN = 1000


async def async_list_filters(
    *, client: AsyncClient = None, prefix: str = DEFAULT_PREFIX
) -> list[str]:
    """Return the names of all filters on the server, sorted; also of broken ones.

    The arguments are as for AsyncBloomFilter.

    Raises:
        ConfigurationError: If a parameter is not usable.
        ServerError: If the URL does not answer as a Redis server.

    Cost: the server looks at all its keys, whatever they are, 1000 in one round trip.

    >>> from bloomlock import AsyncBloomFilter
    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     _ = await AsyncBloomFilter("pages", capacity=1000, client=server.url)
    ...     found = await async_list_filters(client=server.url)
    ...     gone = await async_delete_filter("pages", client=server.url)
    ...     found, gone, await async_list_filters(client=server.url)
    (['pages'], True, [])
    """
    pattern = meta_pattern(prefix)
    async with async_connected(client) as (scanned, _):
        found = scanned.scan_iter(pattern, count=KEYS_PER_SCAN, _type="hash")
        return names_of([key async for key in found], prefix)


def names_of(keys: Iterable[str | bytes], prefix: str) -> list[str]:
    """Return the names of the filters whose descriptors these are, sorted."""
    texts = (key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys)
    names = {name_of(text, prefix) for text in texts}
    return sorted(name for name in names if name is not None)


async def async_delete_filter(
    name: str, *, client: AsyncClient = None, prefix: str = DEFAULT_PREFIX
) -> bool:
    """Delete a filter that need not be whole, such as one whose bitmap was evicted.

    It returns True if there was anything of it. The arguments are as for AsyncBloomFilter.

    Raises:
        FilterMismatchError: If what is stored there is no filter, or one of another format;
            nothing is deleted then.
        ConfigurationError, ServerError: As `async_list_filters`.

    Cost: three round trips, four if there are several shards.
    """
    keys = FilterKeys(name, prefix)
    async with async_connected(client) as (_, runtime):
        deleted: bool = await runtime.run(switch.delete(keys))
        return deleted
