"""Drives the cores over a redis-py client for asyncio; see threads.py for what it must not do."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import ReadOnlyError, RedisError

from bloomlock.commands import Replies, join_commands
from bloomlock.effects import (
    NO_LIMIT,
    Behind,
    ConnectionLost,
    Core,
    FanOut,
    Limit,
    Pipeline,
    Request,
)
from bloomlock.errors import ConfigurationError
from bloomlock.parallel import answered_of, leaves_transaction, outcomes_of, writes_of
from bloomlock.refusals import is_refusal

from . import pools, redispy
from ._async.scopes import STEPS, AsyncScope
from ._async.sending import EFFECTS, AsyncSending
from .clients import close_async_client
from .clock import boot_clock
from .cluster import (
    Sent,
    may_wait,
)
from .connections import AsyncTaken, Bounds, Kept
from .finishing import Background, finish
from .subscriptions import Hub
from .workers import out_of_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    import redis.asyncio

    from bloomlock.commands import Command
    from bloomlock.effects import Outcome, Subscribe
    from bloomlock.parallel import Write

T = TypeVar("T")


CANCELLED_SECONDS = 0.5
"""How long a cancelled request waits for its reply at most."""


class Tasks(AsyncSending):
    """Runs cores on the running event loop; a cancelled run leaves no connection half-used.

    Get one by `tasks_for`.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        members: Sequence[Tasks] = (),
    ) -> None:
        super().__init__(client, members)
        pool = pools.own_pool(client)
        self._kept = Kept(pool)
        self._read_reply = redispy.async_reply_reader(pool)
        self._hub: Hub | None = None
        self._bounds = Bounds()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moving: asyncio.Task[None] | None = None
        self._background = Background()

    async def run(self, core: Core[T]) -> T:  # noqa: C901, PLR0912 - one loop
        """Carry out the steps of a core and return its result."""
        held: AsyncTaken | None = None
        scope: AsyncScope | None = None
        limit = NO_LIMIT
        replies: Any
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            step = next(core)
            while True:
                try:
                    # What nearly all steps are comes first.
                    if (
                        type(step) is Request
                        and limit is NO_LIMIT
                        and held is None
                        and not step.hold
                    ):
                        replies = await self._request(step)
                    elif isinstance(step, (Request, Pipeline)):
                        taken, held = held, None
                        replies, held = await self._within(limit, step, taken)
                    elif isinstance(step, Limit):
                        limit, replies = step, None
                    elif (carry_out := _EFFECTS.get(type(step))) is not None:
                        replies = await carry_out(self, step)
                    else:
                        scope = scope or AsyncScope(self)
                        replies = await STEPS[type(step)](scope, step)
                    _look_for_cancellation(task, cancelled)
                # Not GeneratorExit: then there is no loop that could carry out another step.
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised again
                    raised: BaseException = error
                    if task is not None and task.cancelling() > cancelled:
                        # It also counts if something on the way has swallowed it.
                        cancelled = task.cancelling()
                        if not isinstance(error, asyncio.CancelledError):
                            raised = asyncio.CancelledError()
                    step = core.throw(raised)
                else:
                    step = core.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            if held is not None or scope is not None:
                await self._close(held, scope)

    async def _close(self, held: AsyncTaken | None, scope: AsyncScope | None) -> None:
        """Close what a core has left open."""
        if held is not None:
            await self._drop(held)
        if scope is not None:
            await scope.close()

    async def _within(
        self, limit: Limit, step: Request | Pipeline, taken: AsyncTaken | None
    ) -> tuple[Replies, AsyncTaken | None]:
        """Carry out a step; ConnectionLost at the end of the limit, while it goes on.

        It goes on also if the caller is cancelled: what is to be given back is given back after it.
        """
        if limit.until is None:
            return await self._carry_out(step, taken, None)
        if (seconds := limit.until - boot_clock()) <= 0:
            if taken is not None:
                await self._drop(taken)
            raise out_of_time(sent=False)
        work = self._carry_out(step, taken, limit.until)
        task = asyncio.create_task(work, name="bloomlock-request")
        limit.line[0] = task
        try:
            await asyncio.wait((task,), timeout=seconds)
        finally:
            if not task.done():
                self._background.add(task)
                task.add_done_callback(self._drop_late)
        if not task.done():
            raise out_of_time(sent=True)
        return task.result()

    def _drop_late(self, task: asyncio.Task[tuple[Replies, AsyncTaken | None]]) -> None:
        if not task.cancelled() and task.exception() is None and (taken := task.result()[1]):
            self._background.start(self._drop(taken))

    async def close(self) -> None:
        """Give the idle connection back, and close the one that listens for announcements."""
        await self._kept.give_back()
        if self._hub is not None:
            await self._hub.close()

    async def release_idle(self) -> None:
        """Give the idle connection back to its pool."""
        await self._kept.give_back()

    async def _move_to_running_loop(self) -> None:
        """Close the client's connections if they belong to a loop that no longer runs.

        Connections are bound to the loop they were made on; the client makes new ones.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif not self._loop.is_running():
            if self._moving is None or self._moving.get_loop() is not loop:
                self._moving = loop.create_task(self._disconnect())
            # No caller takes a connection before it is done, even if its first caller is gone.
            await asyncio.shield(self._moving)
            self._loop, self._moving = loop, None
        elif self._loop is not loop:
            # Its connections would be read by two loops at once.
            raise ConfigurationError(
                "client must be used by one event loop at a time, and another one that uses it is "
                "running; make a filter or lock with a client of its own for each loop"
            )

    async def _disconnect(self) -> None:
        with contextlib.suppress(RuntimeError, RedisError, OSError):
            await self._kept.give_back()
        for source in pools.sources_of(self.client):
            # redis-py forgets a connection whose loop does not let it be closed.
            with contextlib.suppress(RuntimeError, RedisError, OSError):
                await source.disconnect()

    async def close_client(self) -> None:
        """Close the client, on whatever loop it was used last."""
        if self._loop is not asyncio.get_running_loop():
            await self._move_to_running_loop()
        await close_async_client(self.client)

    async def run_behind(self, step: Behind) -> None:
        """Carry out a core after what goes on in a line; wait for its end, but not for long."""
        await self._background.run_behind(self.run, step)

    async def fan_out(self, step: FanOut) -> list[Any]:
        """Run a core at each server; a silent server keeps its task, but not the caller."""
        return await self._background.fan_out(self.members, step)

    async def end_background(self, seconds: float) -> None:
        """Wait for what goes on in the background; cancel what does not end in time."""
        await self._background.end(seconds)

    async def subscribe(self, step: Subscribe) -> Hub | None:
        """Return what listens for this client, joined, or None if nothing can."""
        hub = self._hub
        if hub is None or hub.loop is not asyncio.get_running_loop():
            hub = self._hub = Hub()
        if hub.is_open:
            hub.rejoin()
            return hub
        if step.connect and await hub.join(await self._source(step.key), step.seconds):
            return hub
        return None

    def unsubscribe(self, hub: Hub) -> None:
        """End the part of one core in what listens."""
        hub.part()

    async def ask_all(
        self, requests: Sequence[Request | Pipeline], until: float | None = None
    ) -> list[Outcome]:
        """Send requests to all their servers at once; return what came of each."""
        outcomes: list[Any] = [None] * len(requests)
        answered: list[Sent] = []
        asked = [
            self._ask_server(source, requests, indices, outcomes, answered)
            for source, indices in await self._by_source(requests, outcomes)
        ]
        if len(asked) == 1:
            await asked[0]
        else:
            # All of them end before this does, also if it is cancelled.
            for error in await asyncio.gather(*asked, return_exceptions=True):
                if error is not None:
                    raise error
        waits = any(map(may_wait, requests))
        for sent in answered:
            await self._follow(sent, until, waits=waits)
        return outcomes

    async def _ask_server(
        self,
        source: Any,
        requests: Sequence[Request | Pipeline],
        indices: Sequence[int],
        outcomes: list[Any],
        answered: list[Sent],
    ) -> None:
        """Carry out requests to one server; note those that were answered, in a cluster."""
        mine = [requests[index] for index in indices]
        sent: list[Command] | None = None if self._cluster is None else []
        replies: Replies = []
        lost: ConnectionLost | None = None
        try:
            taken = await self._take(source)
            await self._exchange_many(taken, writes_of(mine, sent), replies)
        except ConnectionLost as one:
            lost = one
        each = outcomes_of(mine, replies, lost)
        if lost is None and leaves_transaction(mine, each):
            await self._drop(taken)
        elif lost is None:
            await self._give_back(taken)
        answered += starmap(Sent, answered_of(mine, each, sent or ()))
        for index, outcome in zip(indices, each, strict=True):
            outcomes[index] = outcome

    async def _source(self, key: str) -> Any:
        """Return what connections come from: the pool, or the node of a cluster."""
        if self._loop is not asyncio.get_running_loop():
            await self._move_to_running_loop()
        if self._cluster is None:
            return self.client.connection_pool
        await self._cluster.initialize()
        return self._cluster.get_node_from_key(key)

    async def _take(self, source: Any) -> AsyncTaken:
        bound = self._bounds.of(source)
        await bound.acquire()
        try:
            connection = await self._kept.take(source)
            if connection is None:
                connection = await pools.async_get_connection(source)
        except (RedisError, OSError) as error:
            bound.release()
            await self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from None
        except BaseException:
            bound.release()
            raise
        return AsyncTaken(source, connection, bound)

    async def _give_back(self, taken: AsyncTaken) -> None:
        source, connection, bound = taken
        try:
            if self._kept.keep(source, connection):
                return
            released = pools.async_release(source, connection)
            if pools.waits_in_release(source):
                await finish(released)
            else:
                await released
        finally:
            bound.release()

    async def _drop(self, taken: AsyncTaken) -> None:
        try:
            await redispy.async_close_quietly(taken.connection)
        finally:
            await self._give_back(taken)

    async def _exchange(
        self,
        taken: AsyncTaken,
        commands: Sequence[Command],
        room: memoryview | None = None,  # noqa: ARG002 - for threads
    ) -> Replies:
        """Send commands in one write and return their replies."""
        replies: Replies = []
        await self._exchange_many(taken, ((0, len(commands), join_commands(commands)),), replies)
        return replies

    async def _exchange_many(
        self,
        taken: AsyncTaken,
        writes: Iterable[Write],
        replies: Replies,
    ) -> None:
        """Send one write after the other and read all replies; see `parallel.writes_of`."""
        connection = taken.connection
        written = before = 0
        try:
            try:
                for answered, count, data in writes:
                    await self._read(connection, answered, replies)
                    before, written = written, count
                    await redispy.async_send(connection, *data)
                await self._read(connection, written, replies)
            except asyncio.CancelledError:
                # What was sent is carried out; what the caller does about it must not overtake it.
                with contextlib.suppress(RedisError, OSError):
                    await finish(self._read_soon(connection, written, replies))
                raise
        except (RedisError, OSError) as error:
            await self._drop(taken)
            # What is refused while a closed connection is opened again was not sent.
            left = (before if is_refusal(error) else written) > 0
            raise ConnectionLost(error, sent=left, replies=replies, written=written) from None
        except BaseException:
            await self._drop(taken)
            raise
        if ReadOnlyError in map(type, replies):
            await self._leave_replica(taken)

    async def _read(self, connection: Any, count: int, replies: Replies) -> None:
        """Read until there are `count` replies."""
        while len(replies) < count:
            try:
                reply = await self._read_reply(connection)
            except (RedisError, OSError) as error:
                await self._take_refusal(connection, error, count, replies)
            else:
                replies.append(reply)

    async def _read_soon(self, connection: Any, count: int, replies: Replies) -> None:
        async with asyncio.timeout(CANCELLED_SECONDS):
            await self._read(connection, count, replies)


def _look_for_cancellation(task: asyncio.Task[Any] | None, before: int) -> None:
    """Raise a cancellation that was swallowed on the way.

    Before Python 3.12 asyncio.wait_for does that, if what it waits for ends at the same moment,
    and redis-py sends by it.
    """
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


_BACKGROUND: dict[type, Callable[[Tasks, Any], Awaitable[Any]]] = {
    Behind: Tasks.run_behind,
    FanOut: Tasks.fan_out,
}
_EFFECTS: dict[type, Callable[[Any, Any], Awaitable[Any]]] = {**EFFECTS, **_BACKGROUND}


def tasks_for(client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> Tasks:
    """Return the runtime of a client, the same for all filters and locks over it."""
    # A client's id is not given to another one while its runtime, which holds it, lives.
    shared = _SHARED.get(id(client))
    if shared is None:
        shared = _SHARED[id(client)] = Tasks(client)
    return shared


def tasks_over(clients: Sequence[redis.asyncio.Redis | redis.asyncio.RedisCluster]) -> Tasks:
    """Return a runtime for cores that ask several servers, by FanOut only."""
    return Tasks(clients[0], [tasks_for(client) for client in clients])


_SHARED: weakref.WeakValueDictionary[int, Tasks] = weakref.WeakValueDictionary()
