"""The runtime for asyncio: event loops, cancellations, and how many requests go out at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import redis.asyncio
from redis.exceptions import RedisError

from bloomlock.errors import ConfigurationError

from . import connections
from ._async.driver import AsyncDriver
from .background import AsyncBackground, finish
from .clients import close_async_client
from .pubsub import Hub

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Subscribe

    from .connections import Source, Taken

_ONE_MOVES = threading.Lock()
CANCELLED_SECONDS = 0.5
"""How long a cancelled request waits for its reply at most."""
MOST_AT_ONCE = 16
"""Requests of one client to one server that may be on their way at once.

Three hundred tasks that ask at the same moment would open three hundred connections, or find that
the pool has no more. A task that waits for a lock counts only while it asks."""


class Tasks(AsyncDriver):
    """Runs cores on the running event loop; a cancelled run leaves no connection half-used."""

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        members: Sequence[Tasks] = (),
    ) -> None:
        super().__init__(client, members)
        self._background = AsyncBackground()
        self._hub: Hub | None = None
        self._bounds: dict[str, asyncio.Semaphore] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moving: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await self._kept.give_back()
        if self._hub is not None:
            await self._hub.close()

    async def release_idle(self) -> None:
        await self._kept.give_back()

    async def close_client(self) -> None:
        """Close the client, on whatever loop it was used last."""
        await self.be_on_running_loop()
        await close_async_client(self.client)

    async def end_background(self, seconds: float) -> None:
        await self._background.end(seconds)

    async def subscribe(self, step: Subscribe) -> Hub | None:
        hub = self._hub
        if hub is None or hub.loop is not asyncio.get_running_loop():
            hub = self._hub = Hub()
        if not (hub.is_open or step.connect):
            return None
        source = None if hub.is_open else await self.source_of(step.key)
        return hub if await hub.join(source, step.seconds) else None

    def unsubscribe(self, hub: Hub) -> None:
        hub.part()

    async def be_on_running_loop(self) -> None:
        """Close the client's connections if they belong to a loop that no longer runs.

        Connections are bound to the loop they were made on; the client makes new ones.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            with _ONE_MOVES:
                if self._loop is not None and self._loop.is_running():
                    # Its connections would be read by two loops at once.
                    raise ConfigurationError(
                        "client must be used by one event loop at a time, and another one that "
                        "uses it is running; make a filter or lock with a client of its own for "
                        "each loop"
                    )
                is_first, self._loop, self._bounds = self._loop is None, loop, {}
                self._moving = None if is_first else loop.create_task(self._disconnect())
        if (moving := self._moving) is not None:
            # No caller takes a connection before it is done, even if its first caller is gone.
            await asyncio.shield(moving)
            if self._moving is moving:
                self._moving = None

    async def _disconnect(self) -> None:
        with contextlib.suppress(RuntimeError, RedisError, OSError):
            await self._kept.give_back()
        sources: list[Source] = [connections.own_pool(self.client)]
        if isinstance(self.client, redis.asyncio.RedisCluster):
            sources = list(self.client.nodes_manager.nodes_cache.values())
        for source in sources:
            # redis-py forgets a connection whose loop does not let it be closed.
            with contextlib.suppress(RuntimeError, RedisError, OSError):
                await source.disconnect()

    async def _take_turns(self, turns: Sequence[AsyncGenerator[bool, None]]) -> None:
        async def carry_out(turn: AsyncGenerator[bool, None]) -> None:
            async for _ in turn:
                pass

        if len(turns) == 1:
            await carry_out(turns[0])
        else:
            # All of them end before this does, also if it is cancelled.
            for error in await asyncio.gather(*map(carry_out, turns), return_exceptions=True):
                if error is not None:
                    raise error

    async def _take(self, source: Source) -> Taken:
        # A node that does not answer must not hold up what goes to the others.
        name = str(getattr(source, "name", ""))
        bound = self._bounds.get(name)
        if bound is None:
            most = min(MOST_AT_ONCE, connections.max_connections(source, MOST_AT_ONCE))
            bound = self._bounds[name] = asyncio.Semaphore(max(1, most))
        await bound.acquire()
        try:
            return (await super()._take(source))._replace(bound=bound)
        except BaseException:
            bound.release()
            raise

    async def _give_back(self, taken: Taken) -> None:
        try:
            await super()._give_back(taken)
        finally:
            if taken.bound is not None:
                taken.bound.release()

    async def _abandon(
        self, taken: Taken, error: BaseException, count: int, replies: Replies
    ) -> None:
        try:
            if isinstance(error, asyncio.CancelledError):
                # What was sent is carried out; what the caller does about it must not overtake it.
                with contextlib.suppress(RedisError, OSError):
                    await finish(self._read_soon(taken, count, replies))
        finally:
            await self._drop(taken)

    async def _read_soon(self, taken: Taken, count: int, replies: Replies) -> None:
        async with asyncio.timeout(CANCELLED_SECONDS):
            await self._read(taken, count, replies)


tasks_for, tasks_over = Tasks.of, Tasks.over
