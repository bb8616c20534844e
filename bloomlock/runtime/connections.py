"""Connections that requests have taken from a client, and how many they may take at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from bloomlock.commands import EXEC, ends_transaction

from . import redispy
from .finishing import finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.commands import Command, Replies

Taken: TypeAlias = tuple[Any, Any]
"""A redis-py connection pool and a connection taken from it."""

MOST_AT_ONCE = 16
"""Requests of one client to one server that may be on their way at once.

Three hundred tasks that ask at the same moment would open three hundred connections, or find that
the pool has no more. A task that waits for a lock counts only while it asks."""


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
            most = min(MOST_AT_ONCE, redispy.max_connections(source, MOST_AT_ONCE))
            bound = self._bounds[name] = asyncio.Semaphore(max(1, most))
        return bound


class AsyncTaken:
    """A connection and where it came from."""

    def __init__(self, source: Any, connection: Any, bound: asyncio.Semaphore) -> None:
        self._source = source
        self._bound = bound
        self.connection = connection

    async def end(
        self, commands: Sequence[Command], replies: Replies, *, watches: bool = False
    ) -> None:
        """Give the connection back, or close it if MULTI or WATCH may be pending on it."""
        transaction = watches or (len(commands) > 0 and commands[-1] == EXEC)
        if transaction and not ends_transaction(commands, replies):
            await self.drop()
        else:
            await self.give_back()

    async def give_back(self) -> None:
        """Let the next request have the connection."""
        try:
            released = redispy.async_release(self._source, self.connection)
            if redispy.waits_in_release(self._source):
                await finish(released)
            else:
                await released
        finally:
            self._bound.release()

    async def drop(self) -> None:
        """Give back a connection that is in the middle of something."""
        try:
            await redispy.async_close_quietly(self.connection)
        finally:
            await self.give_back()
