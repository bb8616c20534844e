"""Connection pools of redis-py, how connections are taken from them, and which may be used again.

`Source` is what connections come from: a connection pool, or a node of an asyncio cluster.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from .redispy import OWN_CLASSES, SHORTEST_READ_S, async_close_quietly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .redispy import Connection

Source: TypeAlias = Any
"""See the module."""
FEW_CONNECTIONS = 16
_HAS_MARKS = hasattr(redis.connection.Connection, "should_reconnect")
NO_RETRY = Retry(NoBackoff(), 0)
_KEEP_NONE = (
    redis.BlockingConnectionPool,
    redis.asyncio.BlockingConnectionPool,
    redis.sentinel.SentinelConnectionPool,
    redis.asyncio.sentinel.SentinelConnectionPool,
)


def open_connection(pool: Source, seconds: float | None = None) -> Connection:
    """Return an open connection with the settings of a pool, which does not count it."""
    # RESP2: redis-py writes each message of RESP3 to a log before it returns it.
    settings = {**settings_of(pool), "protocol": 2}
    if seconds is not None:
        for name in ("socket_connect_timeout", "socket_timeout"):
            allowed = settings.get(name)
            settings[name] = max(
                SHORTEST_READ_S, seconds if allowed is None else min(seconds, allowed)
            )
        settings["retry"] = NO_RETRY
    connection = pool.connection_class(**settings)
    connection.connect()
    return connection


def settings_of(source: Source) -> Mapping[str, Any]:
    """Return what connections of a source are made with: `host` and `port`, or `path`, and more."""
    settings: Mapping[str, Any] = source.connection_kwargs
    return settings


def own_pool(client: object) -> Source | None:
    """Return the pool of a client; None for that of a cluster."""
    return getattr(client, "connection_pool", None)


def max_connections(source: Source, default: int) -> int:
    """Return how many connections a source may have at once, `default` if it does not say."""
    return int(getattr(source, "max_connections", default))


def may_keep_one(pool: Source | None) -> bool:
    """Return whether a connection may be kept out of a pool while nothing is sent.

    Not where connections are few or callers wait for one, nor where Sentinel looks at each
    connection that comes back.
    """
    return (
        pool is not None
        and not isinstance(pool, _KEEP_NONE)
        and max_connections(pool, 0) >= FEW_CONNECTIONS
    )


def asks_sentinel(pool: Source | None) -> bool:
    """Return whether the connections of a pool ask Sentinel for the server when they open."""
    return hasattr(pool, "sentinel_manager")


def renew_lock(pool: Source | None) -> None:
    """Let the lock of a pool be free in a child of fork, whichever thread had it in the parent.

    redis-py takes that lock before it notices that its process is another one.
    """
    if pool is not None and hasattr(pool, "_lock"):
        pool._lock = threading.RLock()  # noqa: SLF001 - there is no public way


def is_in_use_here(pool: Source) -> bool:
    """Return whether this thread is in the middle of what a pool does under its lock.

    What runs when an object is no longer needed may come there, and must not change the pool.
    """
    is_owned = getattr(getattr(pool, "_lock", None), "_is_owned", None)
    return is_owned is not None and bool(is_owned())


def address_of_url(url: str) -> Mapping[str, Any]:
    """Return the settings that a URL stands for; see `settings_of`."""
    settings: Mapping[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    return settings


async def async_open_connection(source: Source) -> Connection:
    """Return an open connection with the settings of a source, which does not count it."""
    connection = source.connection_class(**settings_of(source))
    await connection.connect()
    return connection


async def async_get_connection(source: Source) -> Connection:
    """Return an open connection of a pool or of a node."""
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
    """Give a connection back."""
    if (released := source.release(connection)) is not None:  # None: from a node
        await released


def waits_in_release(source: Source) -> bool:
    """Return whether giving back waits for a lock; cut off there, the source is one short."""
    return isinstance(source, redis.asyncio.BlockingConnectionPool)


def sources_of(client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> list[Source]:
    """Return all that connections of a client come from, as far as is known."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return list(client.nodes_manager.nodes_cache.values())
    return [client.connection_pool]


def is_readable(connection: Connection) -> bool:
    """Return whether something can be read, or the server has closed the connection."""
    return bool(connection.can_read())


def is_open(connection: Connection) -> bool:
    """Return whether a connection has a socket; without one it connects when it sends."""
    return getattr(connection, "_sock", None) is not None


def may_be_kept(connection: Connection) -> bool:
    """Return whether a connection may be used again before its pool has had it back.

    Not if redis-py has something to do to it then, see `is_marked`, nor if it was made by a parent
    of this process.
    """
    return connection.pid == os.getpid() and not is_marked(connection)


def async_may_be_kept(connection: Connection) -> bool:
    """Return the same for asyncio, where a connection must be open and have nothing to be read."""
    return bool(connection.is_connected) and not (is_marked(connection) or has_input(connection))


def is_marked(connection: Connection) -> bool:
    """Return whether redis-py has something to do to a connection as soon as it is released.

    It connects it to another server after a maintenance hand-off (since 7.0), or gives it a new
    credential.
    """
    if type(connection) in OWN_CLASSES and _HAS_MARKS:
        # Without calls: this is asked in each request.
        return connection._should_reconnect or connection._re_auth_token is not None  # noqa: SLF001
    marked = getattr(connection, "should_reconnect", None)
    return (marked is not None and marked()) or (
        getattr(connection, "_re_auth_token", None) is not None
    )


def has_input(connection: Connection) -> bool:
    """Return whether bytes, or the end of the stream, wait at the socket of a connection."""
    writer = connection._writer  # noqa: SLF001 - redis-py has no other way to the socket
    sock = None if writer is None else writer.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
