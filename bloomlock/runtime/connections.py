"""Connections of redis-py: taken from a source and given back, or opened beside it."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from .background import finish
from .redispy import SHORTEST_READ_S, async_close_quietly, has_input

if TYPE_CHECKING:
    from .redispy import Connection

Source: TypeAlias = Any
"""What connections come from: a connection pool, or a node of an asyncio cluster."""
Idle: TypeAlias = "tuple[Connection, Any, float]"
"""A connection, the process or event loop that may use it, and when it was used last."""
KEPT_SECONDS = 5.0
"""How long a connection in use is kept out of the pool, whose release has hooks."""
owner, async_owner = os.getpid, asyncio.get_running_loop
"""Who may use a connection: the process, not a child of fork; the loop that it was made on."""
FEW_CONNECTIONS = 16
_KEEP_NONE = (
    redis.BlockingConnectionPool,
    redis.asyncio.BlockingConnectionPool,
    redis.sentinel.SentinelConnectionPool,
    redis.asyncio.sentinel.SentinelConnectionPool,
)


class Taken(NamedTuple):
    """A connection and the bound that counts it; and the server's role if it is known."""

    source: Source
    connection: Connection
    role: list[Any] | None = None
    bound: asyncio.Semaphore | None = None


def says_replica(hello: Any) -> bool | None:
    """Return whether a server answered HELLO as a replica; None if it did not say."""
    if isinstance(hello, list):
        hello = dict(zip(hello[::2], hello[1::2], strict=False))
    role = hello.get(b"role") if isinstance(hello, dict) else None
    return None if role is None else role != b"master"


def place_of(client: Any) -> str:
    if (pool := own_pool(client)) is None:
        return "this cluster"
    known = pool.connection_kwargs
    place = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
    return f"{place}, database {known.get('db') or 0}"


def own_pool(client: object) -> Source | None:
    return getattr(client, "connection_pool", None)


def max_connections(source: Source, default: int) -> int:
    return int(getattr(source, "max_connections", default))


def may_keep_one(pool: Source | None) -> bool:
    return (
        pool is not None
        and not isinstance(pool, _KEEP_NONE)
        and max_connections(pool, 0) >= FEW_CONNECTIONS
    )


def idle_of(pool: Source | None) -> list[Idle]:
    """Return the list of the connections that are kept out of a pool, which are one or none.

    It stays with the pool: a runtime that is not closed leaves its connection to the next one.
    """
    idle: list[Idle] = [] if pool is None else pool.__dict__.setdefault("bloomlock_idle", [])
    return idle


def get_connection(pool: Source) -> Connection:
    try:
        return pool.get_connection()
    except Exception:
        raise
    except BaseException:
        # KeyboardInterrupt while it connects leaves redis-py a connection of no use.
        pool.disconnect(inuse_connections=False)
        raise


def release(pool: Source, connection: Connection) -> None:
    pool.release(connection)


async def async_get_connection(source: Source) -> Connection:
    if hasattr(source, "acquire_connection"):
        connection = source.acquire_connection()
    else:
        connection = await source.get_connection()
    try:
        if has_input(connection):
            # While the loop was held up, the server closed an idle connection: the loop has not
            # read the end of it yet. What is written to it now would be of unknown outcome.
            await async_close_quietly(connection)
        await connection.connect()
    except BaseException:
        await async_close_quietly(connection)
        if (released := source.release(connection)) is not None:
            await released
        raise
    return connection


async def async_release(source: Source, connection: Connection) -> None:
    released = source.release(connection)
    if isinstance(source, redis.asyncio.BlockingConnectionPool):
        # It waits for a lock; cut off there, the pool is one connection short.
        await finish(released)
    elif released is not None:  # None: from a node
        await released


def open_connection(pool: Source, seconds: float | None = None) -> Connection:
    """Return an open connection with the settings of a pool, which does not count it."""
    # RESP2: redis-py writes each message of RESP3 to a log before it returns it.
    settings = {**pool.connection_kwargs, "protocol": 2}
    if seconds is not None:
        for name in ("socket_connect_timeout", "socket_timeout"):
            allowed = settings.get(name)
            settings[name] = max(
                SHORTEST_READ_S, seconds if allowed is None else min(seconds, allowed)
            )
        settings["retry"] = Retry(NoBackoff(), 0)
    connection = pool.connection_class(**settings)
    connection.connect()
    return connection


async def async_open_connection(source: Source) -> Connection:
    connection = source.connection_class(**source.connection_kwargs)
    await connection.connect()
    return connection
