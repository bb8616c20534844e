"""Where a filter's or a lock's client comes from: given, by URL, from the environment, embedded."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

import redis
import redis.asyncio
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from bloomlock.effects import shorten_traceback
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server.urls import checked_address, explained, find_address, shown

from . import connections

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster
_SYNC = (redis.Redis, redis.RedisCluster)
_ASYNC = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
CLIENTS = (*_SYNC, *_ASYNC)

CONNECT_TIMEOUT = 1.0
"""Seconds for a connection, and for the first answer. What the URL says wins."""
REPLY_TIMEOUT = 2.0


def sync_client(client: object) -> tuple[Client, bool]:
    """Return a client for threads, and whether it was made here."""
    if isinstance(client, _SYNC):
        return client, False
    if isinstance(client, _ASYNC):
        raise ConfigurationError(
            "client must be a redis.Redis or redis.RedisCluster, not an asyncio client; "
            "use AsyncBloomFilter, AsyncLock, ... with that"
        )
    try:
        address = find_address(client)
        with explained(address):
            kind: Any = redis.Redis
            with kind.from_url(address.url, **_options(Retry, CONNECT_TIMEOUT)) as first:
                first.ping()
                with suppress(ResponseError):  # INFO is forbidden; a cluster client can be given
                    if first.info("cluster").get("cluster_enabled"):
                        kind = redis.RedisCluster
            return kind.from_url(address.url, **_options(Retry)), True
    except (ServerError, ConfigurationError) as error:
        shorten_traceback(error)
        raise


async def async_client(client: object) -> tuple[AsyncClient, bool]:
    """Return a client for asyncio, and whether it was made here; raises as `sync_client`."""
    import asyncio  # noqa: PLC0415 - only this path needs it

    if isinstance(client, _ASYNC):
        return client, False
    if isinstance(client, _SYNC):
        raise ConfigurationError(
            "client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not a client "
            "for threads; use BloomFilter, Lock, ... with that"
        )
    try:
        # The embedded server may have to be started.
        address = await asyncio.to_thread(find_address, client)
        retry = redis.asyncio.retry.Retry
        with explained(address):
            kind: Any = redis.asyncio.Redis
            first = kind.from_url(address.url, **_options(retry, CONNECT_TIMEOUT))
            try:
                await first.ping()
                with suppress(ResponseError):
                    if (await first.info("cluster")).get("cluster_enabled"):
                        kind = redis.asyncio.RedisCluster
            finally:
                await close_async_client(first)
            return kind.from_url(address.url, **_options(retry)), True
    except (ServerError, ConfigurationError) as error:
        shorten_traceback(error)
        raise


async def close_async_client(client: Any) -> None:
    """Close a client; redis-py's own way raises if a connection does not end within a second.

    It is closed all the same.
    """
    with suppress(RedisError, OSError):
        await client.aclose()


def sync_clients(clients: object) -> list[tuple[Client, bool]]:
    return _listed(clients, _SYNC, redis.Redis, Retry, "redis-py clients or URLs")


def async_clients(clients: object) -> list[tuple[AsyncClient, bool]]:
    made, retry = redis.asyncio.Redis, redis.asyncio.retry.Retry
    return _listed(clients, _ASYNC, made, retry, "redis.asyncio clients or URLs")


def _listed(
    clients: Any, kinds: tuple[type, ...], made: Any, retry: Any, allowed: str
) -> list[tuple[Any, bool]]:
    if isinstance(clients, (str, bytes, *kinds)) or not hasattr(clients, "__iter__"):
        raise ConfigurationError(f"clients must be a list of {allowed}, not {shown(clients)}")
    listed = list(clients)
    if not listed:
        raise ConfigurationError(f"clients must be a list of at least one of {allowed}, not empty")
    places: dict[object, int] = {}
    for index, client in enumerate(listed):
        place = _place(client, kinds, f"clients[{index}]", allowed)
        if (other := places.setdefault(place, index)) != index:
            raise ConfigurationError(
                f"clients must be independent servers, but clients[{other}] and clients[{index}] "
                f"are the same one"
            )
    return [
        (one, False) if isinstance(one, kinds) else (made.from_url(one, **_options(retry)), True)
        for one in listed
    ]


def _place(client: Any, kinds: tuple[type, ...], name: str, allowed: str) -> object:
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


def _options(retry: Any, reply_timeout: float | None = None) -> dict[str, Any]:
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
