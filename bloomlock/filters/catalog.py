"""Filters by name, without attaching to one: which there are, and away with one, broken or not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bloomlock.keys import DEFAULT_PREFIX, FilterKeys, meta_pattern, name_of
from bloomlock.runtime.clients import sync_client
from bloomlock.runtime.threads import threads_for

from . import maintenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        FilterMismatchError: If what is stored there is no filter, or one of a newer format;
            nothing is deleted then.
        ConfigurationError, ServerError: As `list_filters`.

    Cost: two round trips, and one for each further shard.
    """
    keys = FilterKeys(name, prefix)
    with _connected(client) as connected:
        runtime = threads_for(connected)
        try:
            return runtime.run(maintenance.delete(keys))
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
