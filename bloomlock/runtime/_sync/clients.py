# Written by tools/async_to_sync.py from bloomlock/runtime/_async/clients.py; change that.
"""Where a filter's or a lock's client comes from: given, by URL, from the environment, embedded."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

import redis
from redis.exceptions import ResponseError

from bloomlock.effects import shorten_traceback
from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.runtime import clients
from bloomlock.server.urls import explained, find_address

Client: TypeAlias = redis.Redis | redis.RedisCluster
_KINDS = (redis.Redis, redis.RedisCluster)
_RETRY = redis.retry.Retry


def client_of(client: object) -> tuple[Client, bool]:
    """Return a client, and whether it was made here."""
    if isinstance(client, _KINDS):
        return client, False
    if isinstance(client, clients.CLIENTS):
        raise ConfigurationError(clients.OTHER_KIND[_KINDS])
    try:
        address = find_address(client)
        with explained(address):
            kind: Any = redis.Redis
            first = kind.from_url(address.url, **clients.options(_RETRY, clients.CONNECT_TIMEOUT))
            try:
                first.ping()
                with suppress(ResponseError):  # INFO is forbidden; a cluster client can be given
                    if (first.info("cluster")).get("cluster_enabled"):
                        kind = redis.RedisCluster
            finally:
                close_client(first)
            return kind.from_url(address.url, **clients.options(_RETRY)), True
    except (ServerError, ConfigurationError) as error:
        shorten_traceback(error)
        raise


def clients_of(given: object) -> list[tuple[Client, bool]]:
    return clients.listed(given, _KINDS, _RETRY)


def close_client(client: Any) -> None:
    client.close()
