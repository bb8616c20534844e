"""Where a filter's or a lock's client comes from: given, by URL, from the environment, embedded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeAlias

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from bloomlock.effects import shorten_traceback
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.runtime import clients
from bloomlock.server.urls import explained, find_address

AsyncClient: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster
_KINDS = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
_RETRY = redis.asyncio.retry.Retry


async def async_client_of(client: object) -> tuple[AsyncClient, bool]:
    """Return a client, and whether it was made here."""
    if isinstance(client, _KINDS):
        return client, False
    if isinstance(client, clients.CLIENTS):
        raise ConfigurationError(clients.OTHER_KIND[_KINDS])
    try:
        if True:  # ASYNC
            task = asyncio.current_task()
            cancelled = task.cancelling() if task else 0
            # The embedded server may have to be started.
            address = await asyncio.to_thread(find_address, client)
        else:
            address = find_address(client)
        with explained(address):
            kind: Any = redis.asyncio.Redis
            first = kind.from_url(address.url, **clients.options(_RETRY, clients.CONNECT_TIMEOUT))
            try:
                await first.ping()
                with suppress(ResponseError):  # INFO is forbidden; a cluster client can be given
                    if (await first.info("cluster")).get("cluster_enabled"):
                        kind = redis.asyncio.RedisCluster
            finally:
                await async_close_client(first)
            if True:  # ASYNC
                if task is not None and task.cancelling() > cancelled:
                    # redis-py sends by asyncio.wait_for, which may swallow a cancellation before
                    # Python 3.12. Who waits for a lock then would wait for ever.
                    raise asyncio.CancelledError
            return kind.from_url(address.url, **clients.options(_RETRY)), True
    except (ServerError, ConfigurationError) as error:
        shorten_traceback(error)
        raise


def async_clients_of(given: object) -> list[tuple[AsyncClient, bool]]:
    return clients.listed(given, _KINDS, _RETRY)


async def async_close_client(client: Any) -> None:
    if True:  # ASYNC
        # redis-py raises if a connection does not end within a second; it is closed all the same.
        with suppress(RedisError, OSError):
            await client.aclose()
    else:
        client.close()
