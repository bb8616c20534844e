"""The clients that filters and locks are given, and the options of those that they make."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.connection
from redis.backoff import NoBackoff

from bloomlock.errors import ConfigurationError
from bloomlock.server.urls import checked_address, explained, shown

from . import connections

SYNC = (redis.Redis, redis.RedisCluster)
ASYNC = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
CLIENTS = (*SYNC, *ASYNC)
OTHER_KIND = {
    SYNC: (
        "client must be a redis.Redis or redis.RedisCluster, not an asyncio client; "
        "use AsyncBloomFilter, AsyncLock, ... with that"
    ),
    ASYNC: (
        "client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not a client "
        "for threads; use BloomFilter, Lock, ... with that"
    ),
}

CONNECT_TIMEOUT = 1.0
"""Seconds for a connection, and for the first answer. What the URL says wins."""
REPLY_TIMEOUT = 2.0


def listed(clients: Any, kinds: tuple[Any, ...], retry: Any) -> list[tuple[Any, bool]]:
    """Return clients of independent servers, and whether each was made here, by `kinds[0]`."""
    allowed = f"{'redis-py' if kinds == SYNC else 'redis.asyncio'} clients or URLs"
    if isinstance(clients, (str, bytes, *kinds)) or not hasattr(clients, "__iter__"):
        raise ConfigurationError(f"clients must be a list of {allowed}, not {shown(clients)}")
    given = list(clients)
    if not given:
        raise ConfigurationError(f"clients must be a list of at least one of {allowed}, not empty")
    places: dict[object, int] = {}
    for index, client in enumerate(given):
        place = _place(client, kinds, f"clients[{index}]", allowed)
        if (other := places.setdefault(place, index)) != index:
            raise ConfigurationError(
                f"clients must be independent servers, but clients[{other}] and clients[{index}] "
                f"are the same one"
            )
    return [
        (one, False) if isinstance(one, kinds) else (kinds[0].from_url(one, **options(retry)), True)
        for one in given
    ]


def _place(client: Any, kinds: tuple[Any, ...], name: str, allowed: str) -> object:
    if isinstance(client, kinds):
        pool = connections.own_pool(client)
        if pool is None or hasattr(pool, "sentinel_manager"):
            return id(client)
        place = pool.connection_kwargs
    else:
        address = checked_address(client, name, f"one of the {allowed}, which start with ")
        with explained(address):
            place = redis.connection.parse_url(client)  # type: ignore[no-untyped-call]
    if "path" in place:
        return place["path"]
    return place.get("host", "localhost"), int(place.get("port", 6379))


def options(retry: Any, reply_timeout: float | None = None) -> dict[str, Any]:
    return {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": reply_timeout or REPLY_TIMEOUT,
        # The cores know what may be repeated; a client that retries by itself must not.
        "retry": retry(NoBackoff(), 0),
    }


def not_portable(made: Any) -> str:
    """Return the sentence for an object that is to be pickled or copied."""
    kind = type(made).__name__
    return (
        f"{kind} {made.name!r} cannot be pickled or copied, because its connections are of this "
        f"process; make another {kind} of the same name where it is needed"
    )
