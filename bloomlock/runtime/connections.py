"""Connections of asyncio: how many requests take at once, and one that is kept out of its pool."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from . import pools, redispy
from .finishing import finish

MOST_AT_ONCE = 16
"""Requests of one client to one server that may be on their way at once.

Three hundred tasks that ask at the same moment would open three hundred connections, or find that
the pool has no more. A task that waits for a lock counts only while it asks."""
KEPT_SECONDS = 5.0
"""How long a connection in use is kept out of the pool, whose release has hooks."""


class Taken(NamedTuple):
    """A connection, and the pool it came from."""

    source: Any
    connection: Any


class AsyncTaken(NamedTuple):
    """A connection, where it came from, and the bound that counts it."""

    source: Any
    connection: Any
    bound: asyncio.Semaphore


class Bounds:
    """How many connections to each server may be taken at once, on one loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bounds: dict[str, asyncio.Semaphore] = {}

    def of(self, source: Any) -> asyncio.Semaphore:
        """Return the bound for a pool or a node of a cluster, on the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._bounds = loop, {}
        # A node that does not answer must not hold up what goes to the others.
        name = str(getattr(source, "name", ""))
        bound = self._bounds.get(name)
        if bound is None:
            most = min(MOST_AT_ONCE, pools.max_connections(source, MOST_AT_ONCE))
            bound = self._bounds[name] = asyncio.Semaphore(max(1, most))
        return bound


class Kept:
    """One idle connection of a pool, on one loop.

    Taking one from the pool and giving it back costs as much as a third of an add. It goes back by
    the pool's own release after some seconds of use, and when redis-py has marked it.

    Args:
        pool: The pool; None, or one that may not be without a connection, keeps none here.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool if pools.may_keep_one(pool) else None
        self._idle: list[tuple[Any, asyncio.AbstractEventLoop]] = []
        self._release_at = 0.0
        # The pool counts the connection as used; it must not do so for ever.
        weakref.finalize(self, _release_at_end, self._pool, self._idle).atexit = False

    def keep(self, source: Any, connection: Any) -> bool:
        """Keep a connection that a request gave back; return whether that is done."""
        if source is not self._pool or self._idle or not connection.is_connected:
            return False
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._release_at or pools.is_marked(connection):
            self._release_at = now + KEPT_SECONDS
            return False
        self._idle.append((connection, loop))
        return True

    async def take(self, source: Any) -> Any:
        """Return the connection if it may be used, else None."""
        if not self._idle or source is not self._pool:
            return None
        connection, loop = self._idle[0]
        if loop is asyncio.get_running_loop() and pools.async_may_be_kept(connection):
            self._idle.clear()
            return connection
        await self.give_back()
        return None

    async def give_back(self) -> None:
        """Let the pool have the connection."""
        if self._idle:
            connection, loop = self._idle.pop()
            if loop is not asyncio.get_running_loop() or pools.has_input(connection):
                # A loop that is closed does not let it be closed; redis-py forgets it then.
                with contextlib.suppress(RuntimeError):
                    await redispy.async_close_quietly(connection)
            await finish(pools.async_release(self._pool, connection))


def _release_at_end(pool: Any, idle: list[tuple[Any, asyncio.AbstractEventLoop]]) -> None:
    for connection, loop in idle:
        # A loop that is closed has closed its connections, and the pool with them.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_begin_release, loop, pool, connection)


def _begin_release(loop: asyncio.AbstractEventLoop, pool: Any, connection: Any) -> None:
    async def release() -> None:
        with contextlib.suppress(RedisError, OSError):
            await pools.async_release(pool, connection)

    task = loop.create_task(release())
    _RELEASES.add(task)
    task.add_done_callback(_RELEASES.discard)


_RELEASES: set[asyncio.Task[None]] = set()
"""A loop keeps its tasks by weak references."""
