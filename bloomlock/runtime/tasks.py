"""Drives the cores over a redis-py client for asyncio; see threads.py for what it must not do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import weakref
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar

import redis.asyncio
from redis.exceptions import MovedError, ReadOnlyError, RedisClusterException, RedisError

from bloomlock.effects import (
    EXEC,
    NO_LIMIT,
    READONLY,
    Behind,
    Clock,
    ConnectionLost,
    Core,
    Effect,
    Elsewhere,
    EnterContext,
    ExitContext,
    FanOut,
    FreeMemory,
    IsCluster,
    Limit,
    NextMessage,
    Parallel,
    Pause,
    Pipeline,
    Replies,
    Request,
    Subscribe,
    ends_connection,
    ends_transaction,
    is_refusal,
    join_commands,
)
from bloomlock.parallel import answered_of, leaves_transaction, outcomes_of, writes_of

from . import redispy
from .clients import close_async_client, free_memory, not_a_manager
from .clock import boot_clock
from .cluster import Rounds, Sent, find_again, find_redirects, may_wait, no_server
from .finishing import finish
from .subscriptions import Hub
from .workers import out_of_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from bloomlock.effects import Command, Outcome
    from bloomlock.parallel import Write

    from .cluster import Again, Redirect

T = TypeVar("T")

logger = logging.getLogger("bloomlock.runtime")

MOST_AT_ONCE = 16
"""Requests of one client to one server that may be on their way at once.

Three hundred tasks that ask at the same moment would open three hundred connections, or find that
the pool has no more. A task that waits for a lock counts only while it asks."""

CANCELLED_SECONDS = 0.5
"""How long a cancelled request waits for its reply at most."""


class Tasks:
    """Runs cores on the running event loop; a cancelled run leaves no connection half-used.

    Get one by `tasks_for`.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        members: Sequence[Tasks] = (),
    ) -> None:
        self.client: Any = client
        self._cluster: Any = client if isinstance(client, redis.asyncio.RedisCluster) else None
        self._members = members
        pool = redispy.own_pool(client)
        self._asks_sentinel = redispy.asks_sentinel(pool)
        self._read_reply = redispy.async_reply_reader(pool)
        self._hub: Hub | None = None
        self._slots = _Slots()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moving: asyncio.Task[None] | None = None
        # What goes on without being awaited: a loop keeps its tasks by weak references.
        self._behind: set[asyncio.Task[Any]] = set()

    @property
    def members(self) -> Sequence[Tasks]:
        """The runtime of each server that a FanOut goes to."""
        return self._members or (self,)

    async def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""
        held: _Lease | None = None
        scope: _Scope | None = None
        limit = NO_LIMIT
        replies: Any
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            step = next(core)
            while True:
                try:
                    if isinstance(step, (Request, Pipeline)):
                        lease, held = held, None
                        if limit.until is None:
                            replies, held = await self._carry_out(step, lease, None)
                        else:
                            replies, held = await self._within(limit, step, lease)
                    elif isinstance(step, Limit):
                        limit, replies = step, None
                    else:
                        scope = scope or _Scope(self)
                        replies = await scope.carry_out(step)
                    _look_for_cancellation(task, cancelled)
                except ConnectionLost as lost:
                    step = core.throw(lost)
                else:
                    step = core.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            if held is not None:
                await held.drop()
            if scope is not None:
                await scope.close()

    async def _carry_out(
        self, step: Request | Pipeline, lease: _Lease | None, until: float | None
    ) -> tuple[Replies, _Lease | None]:
        """Carry out what a server is asked; return a connection too that is to be held on."""
        if isinstance(step, Pipeline):
            (outcome,) = await self.ask_all((step,), until)
            if isinstance(outcome, ConnectionLost):
                raise outcome
            return outcome, lease
        if lease is not None or step.hold:
            return await self._request_on(lease, step, until)
        return await self._request(step, until), None

    async def _within(
        self, limit: Limit, step: Request | Pipeline, lease: _Lease | None
    ) -> tuple[Replies, _Lease | None]:
        """Carry out a step; ConnectionLost at the end of the limit, while it goes on.

        It goes on also if the caller is cancelled: what is to be given back is given back after it.
        """
        seconds = (limit.until or 0.0) - boot_clock()
        if seconds <= 0:
            if lease is not None:
                await lease.drop()
            raise out_of_time(sent=False)
        work = self._carry_out(step, lease, limit.until)
        task = asyncio.create_task(work, name="bloomlock-request")
        limit.line[0] = task
        try:
            await asyncio.wait((task,), timeout=seconds)
        finally:
            if not task.done():
                self._behind.add(task)
                task.add_done_callback(self._drop_late)
        if not task.done():
            raise out_of_time(sent=True)
        return task.result()

    def _drop_late(self, task: asyncio.Task[tuple[Replies, _Lease | None]]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and task.exception() is None and (lease := task.result()[1]):
            self._keep(lease.drop())

    async def run_behind(self, step: Behind) -> None:
        """Carry out a core after what goes on in a line; wait for its end, but not for long."""
        task = self._keep(self._run_after(step.line[0], step.core))
        step.line[0] = task
        await asyncio.wait((task,), timeout=max(0.0, step.seconds))

    async def _run_after(self, before: asyncio.Task[Any] | None, core: Core[None]) -> None:
        if before is not None:
            await asyncio.wait((before,))
        try:
            await self.run(core)
        except Exception:
            logger.exception("what was to be given back is left to expire")

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name="bloomlock-behind")
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    @property
    def is_cluster(self) -> bool:
        """Whether keys lie on several servers."""
        return self._cluster is not None

    def server_of(self, key: str) -> str:
        """Return which server of a cluster has a key; empty if there is only one, or none."""
        return redispy.server_of_key(self.client, key)

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:
        """Return the items in groups, each of which one request may carry."""
        if len(self.members) > 1:
            return [[item] for item in items]
        if self._cluster is None:
            return [items]
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(redispy.slot_of(key_of(item)), []).append(item)
        return list(groups.values())

    async def close(self) -> None:
        """Close the connection that listens for announcements."""
        if self._hub is not None:
            await self._hub.close()

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

    async def _disconnect(self) -> None:
        for source in redispy.sources_of(self.client):
            # redis-py forgets a connection whose loop does not let it be closed.
            with contextlib.suppress(RuntimeError, RedisError, OSError):
                await source.disconnect()

    async def close_client(self) -> None:
        """Close the client, on whatever loop it was used last."""
        if self._loop is not asyncio.get_running_loop():
            await self._move_to_running_loop()
        await close_async_client(self.client)

    async def settings_of(self, key: str) -> Mapping[str, Any]:
        """Return the settings of the connections to the server of a key."""
        return redispy.settings_of(await self._source(key))

    async def fan_out(self, step: FanOut) -> list[Any]:
        """Run a core at each server; a silent server keeps its task, but not the caller."""
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        servers: dict[asyncio.Task[Any], int] = {}
        for server, core in enumerate(step.cores):
            line = step.lines[server]
            task = self._keep(self._run_at(server, core, line[0], step.background_s))
            line[0] = task
            servers[task] = server
        out, until = set(servers), step.until
        while out:
            now = boot_clock()
            if until == step.until and step.is_enough(answers):
                until = step.end_of_grace(began, now)
            done, out = await asyncio.wait(
                out, timeout=max(0.0, until - now), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                if not task.cancelled():
                    answers[servers[task]] = task.result()
        return answers

    async def _run_at(
        self, server: int, core: Core[Any], before: asyncio.Task[Any] | None, background_s: float
    ) -> Any:
        if before is not None:
            await asyncio.wait([before])
        try:
            async with asyncio.timeout(background_s):
                return await self.members[server].run(core)
        except Exception as error:  # noqa: BLE001 - an answer of the FanOut
            return error

    async def end_background(self, seconds: float) -> None:
        """Wait for what goes on in the background; cancel what does not end in time."""
        if self._behind:
            _, late = await asyncio.wait(set(self._behind), timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

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
        if answered:
            # What a server of a cluster refuses has to be sent to another one.
            waits = any(may_wait(request) for request in requests)
            await self._follow(answered, until, waits=waits)
        return outcomes

    async def _by_source(
        self, requests: Sequence[Request | Pipeline], outcomes: list[Any]
    ) -> list[tuple[Any, Sequence[int]]]:
        """Return the indices of the requests for each server; note those that have none."""
        if self._cluster is None:
            return [(await self._source(""), range(len(requests)))]
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index, request in enumerate(requests):
            try:
                source = await self._source_of(request.key, replica=request.replica)
            except ConnectionLost as lost:
                outcomes[index] = lost
            else:
                groups.setdefault(id(source), (source, []))[1].append(index)
        # In one order for all tasks, which may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

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
        if mine[0].replica:
            # Its answer is none of those asked for.
            mine.insert(0, READONLY)
        sent: list[Command] | None = None if self._cluster is None else []
        replies: Replies = []
        lost: ConnectionLost | None = None
        try:
            lease = await self._take(source)
            await self._exchange(lease, writes_of(mine, sent), replies)
        except ConnectionLost as one:
            lost = one
        each = outcomes_of(mine, replies, lost)
        if lost is None and leaves_transaction(mine, each):
            await lease.drop()
        elif lost is None:
            await lease.give_back()
        answered += starmap(Sent, answered_of(mine, each, sent or ()))
        for index, outcome in zip(indices, each[len(mine) - len(indices) :], strict=True):
            outcomes[index] = outcome

    async def _request(self, request: Request, until: float | None = None) -> Replies:
        if request.replica:
            return await self._ask_replica(request, until)
        lease = await self._take(await self._source_of(request.key))
        replies = await self._exchange_once(lease, request.commands)
        await lease.end(request.commands, replies)
        if self._cluster is not None:
            sent = Sent(request.key, request.commands, replies)
            await self._follow([sent], until, waits=request.waits)
        return replies

    async def _ask_replica(self, request: Request, until: float | None) -> Replies:
        (outcome,) = await self.ask_all((request,), until)
        if isinstance(outcome, ConnectionLost):
            raise outcome
        return outcome

    async def _request_on(
        self, lease: _Lease | None, request: Request, until: float | None
    ) -> tuple[Replies, _Lease | None]:
        """Use the connection that was held, if one was; return it too if it is to be held on."""
        if lease is None and self._cluster is not None:
            return await self._begin_to_hold(request, until)
        watches = lease is not None
        lease = lease or await self._take(await self._source(request.key))
        replies = await self._exchange_once(lease, request.commands)
        if request.hold:
            return replies, lease
        await lease.end(request.commands, replies, watches=watches)
        return replies, None

    async def _begin_to_hold(
        self, request: Request, until: float | None
    ) -> tuple[Replies, _Lease | None]:
        """Send a first request under WATCH to the server that has the slot, when one has it."""
        rounds: Rounds | None = None
        while True:
            lease = await self._take(await self._source_of(request.key))
            replies = await self._exchange_once(lease, request.commands)
            refused = find_redirects(request.commands, replies)
            if not refused:
                return replies, lease
            await lease.drop()
            now = boot_clock()
            rounds = rounds or Rounds(now, until)
            redirected = await self._note_moved(refused)
            pause = rounds.pause(now, redirected=redirected)
            if pause is None:
                rounds.explain(Sent(request.key, request.commands, replies), now)
                return replies, None
            if pause:
                await asyncio.sleep(pause)

    async def _follow(self, requests: Sequence[Sent], until: float | None, *, waits: bool) -> None:
        """Send again what a cluster refused because a slot moves, until all is answered."""
        rounds: Rounds | None = None
        while again := find_again(requests):
            now = boot_clock()
            rounds = rounds or Rounds(now, until, waits=waits)
            pause = rounds.pause(now, redirected=all(part.target for part in again))
            if pause is None:
                for sent in requests:
                    rounds.explain(sent, now)
                return
            if pause:
                await asyncio.sleep(pause)
            for part in again:
                await self._send_again(part)

    async def _send_again(self, again: Again) -> None:
        commands = again.commands
        try:
            await self._note_moved([redirect for _, redirect in again.parts])
            lease = await self._take(await self._redirected_source(again))
            answers = await self._exchange_once(lease, commands)
        except ConnectionLost as lost:
            again.merge(lost.replies, lost)
        except (RedisError, OSError) as error:
            # What else serves it could not be found out; the others were answered.
            again.merge([], ConnectionLost(error, sent=False, replies=[]))
        else:
            await lease.end(commands, answers)
            again.merge(answers)

    async def _note_moved(self, redirects: Sequence[Redirect]) -> bool:
        """Note what has moved; return whether all has, so that no pause is needed."""
        moved = [each.error for each in redirects if isinstance(each.error, MovedError)]
        for error in moved:
            if error.host:
                await redispy.async_note_moved(self._cluster, error)
            else:
                await self._look_for_nodes()
        return len(moved) == len(redirects)

    async def _source(self, key: str) -> Any:
        """Return what connections come from: the pool, or the node of a cluster."""
        if self._loop is not asyncio.get_running_loop():
            await self._move_to_running_loop()
        return await redispy.source_of_key(self.client, key)

    async def _source_of(self, key: str, *, replica: bool = False) -> Any:
        """Return what connections for a key come from; ConnectionLost where no server has it."""
        if self._cluster is None:
            return await self._source(key)
        try:
            if replica:
                return await redispy.source_of_replica(self._cluster, key)
            return await self._source(key)
        except (RedisError, RedisClusterException, OSError) as error:
            await self._look_for_nodes()
            raise ConnectionLost(no_server(key, error), sent=False, replies=[]) from error

    async def _redirected_source(self, again: Again) -> Any:
        if again.target is not None:
            _, host, port = again.target
            source = redispy.source_of_address(self._cluster, host, port)
            if source is not None:
                return source
            await self._look_for_nodes()
        return await self._source_of(again.key)

    async def _look_for_nodes(self) -> None:
        """Ask a cluster anew who serves what, after one of its servers was not reachable."""
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                await redispy.async_find_servers(self._cluster)

    async def _take(self, source: Any) -> _Lease:
        slots = self._slots.of(source)
        await slots.acquire()
        try:
            return _Lease(source, await self._connect(source), slots)
        except BaseException:
            slots.release()
            raise

    async def _connect(self, source: Any) -> Any:
        try:
            return await redispy.async_get_connection(source)
        except (RedisError, OSError) as error:
            await self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from error

    async def _exchange_once(self, lease: _Lease, commands: Sequence[Command]) -> Replies:
        """Send commands in one write and return their replies."""
        replies: Replies = []
        await self._exchange(lease, ((0, len(commands), join_commands(commands)),), replies)
        return replies

    async def _exchange(
        self,
        lease: _Lease,
        writes: Iterable[Write],
        replies: Replies,
    ) -> None:
        """Send one write after the other and read all replies; see `parallel.writes_of`."""
        connection = lease.connection
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
            await lease.drop()
            # What is refused while a closed connection is opened again was not sent.
            left = (before if is_refusal(error) else written) > 0
            raise ConnectionLost(error, sent=left, replies=replies, written=written) from error
        except BaseException:
            await lease.drop()
            raise
        if self._asks_sentinel and any(isinstance(r, ReadOnlyError) for r in replies):
            # It was the master; opened again, the connection asks Sentinel for the master of now.
            await redispy.async_close_quietly(connection)

    async def _read(self, connection: Any, count: int, replies: Replies) -> None:
        """Read until there are `count` replies."""
        while len(replies) < count:
            try:
                reply = await self._read_reply(connection)
            except (RedisError, OSError) as error:
                if not is_refusal(error):
                    raise
                if ends_connection(error):
                    await redispy.async_close_quietly(connection)
                    replies += [error] * (count - len(replies))
                    return
                reply = error
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


class _Scope:
    """What one run of a core has open: a subscription and context managers."""

    def __init__(self, runtime: Tasks) -> None:
        self._runtime = runtime
        self._subscription: Hub | None = None
        self._entered: list[Any] = []

    async def carry_out(self, step: Effect) -> Any:
        """Carry out a step that needs no connection of its own; return its answer."""
        return await _EFFECTS[type(step)](self, step)

    async def pause(self, step: Pause) -> None:
        await asyncio.sleep(step.seconds)

    async def clock(self, _: Clock) -> Callable[[], float]:
        return boot_clock

    async def behind(self, step: Behind) -> None:
        await self._runtime.run_behind(step)

    async def parallel(self, step: Parallel) -> list[Outcome]:
        return await self._runtime.ask_all(step.requests)

    async def fan_out(self, step: FanOut) -> list[Any]:
        return await self._runtime.fan_out(step)

    async def free_memory(self, step: FreeMemory) -> int | None:
        return free_memory(await self._runtime.settings_of(step.key))

    async def elsewhere(self, step: Elsewhere) -> tuple[Any, Exception | None]:
        try:
            return await step.run(step.core), None
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return None, error

    async def is_cluster(self, _: IsCluster) -> bool:
        return self._runtime.is_cluster

    async def subscribe(self, step: Subscribe) -> bytes:
        self._subscription = self._subscription or await self._runtime.subscribe(step)
        return self._subscription.channel if self._subscription else b""

    async def next_message(self, step: NextMessage) -> bytes | None:
        if self._subscription is None:
            return None
        return await self._subscription.wait(step.addressee, step.seconds)

    async def enter(self, step: EnterContext) -> Exception | None:
        if not hasattr(type(step.manager), "__aenter__"):
            return not_a_manager(step.manager, "an asynchronous context manager")
        try:
            await step.manager.__aenter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(step.manager)
        return None

    async def leave(self, _: ExitContext) -> Exception | None:
        try:
            await self._entered.pop().__aexit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        return None

    async def close(self) -> None:
        """Leave what the core did not, and stop listening."""
        try:
            while self._entered:
                await self._entered.pop().__aexit__(*sys.exc_info())
        finally:
            if self._subscription is not None:
                self._runtime.unsubscribe(self._subscription)


_EFFECTS: dict[type, Callable[[_Scope, Any], Awaitable[Any]]] = {
    Pause: _Scope.pause,
    Clock: _Scope.clock,
    Behind: _Scope.behind,
    Parallel: _Scope.parallel,
    FanOut: _Scope.fan_out,
    FreeMemory: _Scope.free_memory,
    Elsewhere: _Scope.elsewhere,
    IsCluster: _Scope.is_cluster,
    Subscribe: _Scope.subscribe,
    NextMessage: _Scope.next_message,
    EnterContext: _Scope.enter,
    ExitContext: _Scope.leave,
}


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


class _Slots:
    """Bounds for each server that a client talks to."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: dict[str, asyncio.Semaphore] = {}

    def of(self, source: Any) -> asyncio.Semaphore:
        """Return the bound for a pool or a node of a cluster, on the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, {}
        # A node that does not answer must not hold up what goes to the others.
        name = str(getattr(source, "name", ""))
        slots = self._slots.get(name)
        if slots is None:
            most = min(MOST_AT_ONCE, redispy.max_connections(source, MOST_AT_ONCE))
            slots = self._slots[name] = asyncio.Semaphore(max(1, most))
        return slots


class _Lease:
    """A connection and where it came from."""

    def __init__(self, source: Any, connection: Any, slots: asyncio.Semaphore) -> None:
        self._source = source
        self._slots = slots
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
        try:
            released = redispy.async_release(self._source, self.connection)
            if redispy.waits_in_release(self._source):
                await finish(released)
            else:
                await released
        finally:
            self._slots.release()

    async def drop(self) -> None:
        """Give back a connection that is in the middle of something."""
        try:
            await redispy.async_close_quietly(self.connection)
        finally:
            await self.give_back()
