"""Runs cores over a client: takes its connections and sends commands over them.

Commands are sent as bytes over the client's own connections: redis-py's `execute_command` would
retry an update by itself, which loses items (the second try finds what the first one added).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from bloomlock.clock import async_sleep
from bloomlock.commands import EXEC, UNWATCH, encode_command, ends_transaction, join_commands
from bloomlock.effects import NO_LIMIT, ConnectionLost, Limit, Request, shorten_traceback
from bloomlock.errors import BloomlockError, ConfigurationError, FilterNotFoundError
from bloomlock.refusals import ends_connection, explain, is_missing, is_refusal
from bloomlock.runtime import cluster, connections, redispy
from bloomlock.runtime.background import finish
from bloomlock.runtime.connections import KEPT_SECONDS, Taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Command, Core, Pipeline, Replies, Step
    from bloomlock.runtime.connections import Source

T = TypeVar("T")
ROLE_SECONDS = 1.0
"""How often a connection in use asks its server whether it still is the master."""
CANCELLED_SECONDS = 0.5
"""How long a cancelled request waits for its reply at most."""
MOST_AT_ONCE = 16
"""Requests of one client to one server on their way at once in asyncio: three hundred tasks would
open three hundred connections, or find that the pool has no more."""
_LOOK_AT = "bloomlock_look_at"
_HELLO = encode_command("HELLO")
_ONE_MOVES = threading.Lock()


class AsyncExchange:
    """The connections of a client, of which one is kept out of its pool between requests.

    Taking it from the pool costs up to a third of an add. It goes back by the pool's own release
    after some seconds of use, in a child of fork or on another event loop, and when redis-py has
    marked it. Pools that hold few connections, or make callers wait for one, are left alone, and so
    are Sentinel's, which look whether the server of one that comes back is still the master.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._cluster: Any = client if isinstance(client, cluster.CLUSTERS) else None
        pool = connections.own_pool(client)
        self._pool: Any = pool if connections.may_keep_one(pool) else None
        self._idle = connections.idle_of(self._pool)
        self._release_at = time.monotonic() + KEPT_SECONDS
        self._read_reply = redispy.async_reply_reader(pool)
        # A cluster's replicas answer MOVED.
        self._asks_role = self._cluster is None
        self._was_master = False
        if True:  # ASYNC
            self._bounds: dict[str, asyncio.Semaphore] = {}
            self._loop: asyncio.AbstractEventLoop | None = None
            self._moving: asyncio.Task[None] | None = None

    async def run(self, core: Core[T]) -> T:  # noqa: C901, PLR0912 - one loop
        subscriptions: list[Any] = []
        limit = NO_LIMIT
        answer: Any
        step: Any = None
        if True:  # ASYNC
            task = asyncio.current_task()
            cancelled = task.cancelling() if task else 0
        try:
            step = next(core)
            while True:
                try:
                    # What nearly all steps are comes first: a call is one of them and little else.
                    if type(step) is Request and limit is NO_LIMIT:
                        answer = await self._request(step)
                    elif isinstance(step, Limit):
                        limit, answer = step, None
                    else:
                        answer = await self._carry_out(step, limit, subscriptions)
                    if True:  # ASYNC
                        if task is not None and task.cancelling() > cancelled:
                            # Before Python 3.12 asyncio.wait_for, by which redis-py sends,
                            # swallows a cancellation that comes as what it waits for ends.
                            raise asyncio.CancelledError  # noqa: TRY301 - into the core
                except BaseException as error:
                    if True:  # ASYNC
                        if isinstance(error, GeneratorExit):
                            raise  # No loop could carry out another step.
                        if task is not None and task.cancelling() > cancelled:
                            # It also counts if something on the way has swallowed it.
                            cancelled = task.cancelling()
                            if not isinstance(error, asyncio.CancelledError):
                                step = core.throw(asyncio.CancelledError())
                                continue
                    step = core.throw(error)
                else:
                    step = core.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (RedisError, BloomlockError, OSError, TypeError) as error:
            self._explain(error, getattr(step, "key", ""))
            raise
        finally:
            for subscription in subscriptions:
                subscription.part()

    def _explain(self, error: Exception, key: str) -> None:
        """Let an error say to a user what the cores do not know: where, and what to do."""
        shorten_traceback(error)
        if isinstance(error, FilterNotFoundError):
            error.args = (f"{error} at {connections.place_of(self.client)}",)
        elif is_refusal(error) and (text := explain(error, key)) != str(error):
            error.args = (f"the server refuses: {text}",)

    async def _request(self, request: Request, limit: Limit = NO_LIMIT) -> Replies:
        taken = await self._take(await self.source_of(request.key))
        replies = await self._exchange(taken, request.commands, request.room)
        await self._end(taken, request.commands, replies)
        if self._cluster is not None:
            await self._follow(request, replies, limit)
        return replies

    async def _carry_out(self, step: Step, limit: Limit, subscriptions: list[Any]) -> Any:
        """Carry out a step that is not one request."""
        raise NotImplementedError

    async def _follow(self, request: Request | Pipeline, replies: Replies, limit: Limit) -> None:
        """Send again what a cluster refused, and replace the refusals by the answers.

        The first time at once, then after pauses, until the limit of the caller; an error says why
        then. A request that does not wait keeps the second refusal.
        """
        if cluster.refusal_of(replies) is None:
            return
        # Those of a pipeline are made once more.
        commands = [*chain.from_iterable(request.writes())]
        waits = request.waits and limit.waits
        pauses = cluster.Pauses(limit.until, waits=waits)
        while (refusal := cluster.refusal_of(replies)) is not None:
            refused = cluster.refused(commands, replies)
            pause = pauses.next_s(refusal)
            if pause is None:
                if waits:
                    error = pauses.explain(request.key, refusal)
                    for index in refused:
                        replies[index] = error
                return
            await async_sleep(pause)
            again = [commands[index] for index in refused]
            if type(refusal) is AskError:  # MovedError is one too
                again = cluster.with_asking(again)
            try:
                taken = await self._take(await self._source_after(refusal, request.key))
                answers = await self._exchange(taken, again)
            except ConnectionLost as lost:
                # It stands for each answer that is missing, and is not raised, because the other
                # commands of the request were carried out.
                answers = [*lost.replies, *[lost] * (len(again) - len(lost.replies))]
            else:
                await self._end(taken, again, answers)
            pairs = zip(again, answers, strict=True)
            answers = [answer for command, answer in pairs if command != cluster.ASKING]
            for index, answer in zip(refused, answers, strict=True):
                replies[index] = answer

    async def _source_after(self, refusal: Exception, key: str) -> Source:
        await self._note_moved(refusal)
        if isinstance(refusal, AskError):
            source = cluster.source_of_address(self._cluster, refusal.host, refusal.port)
            if source is not None:
                return source
            await self._look_for_nodes()
        return await self.source_of(key)

    async def release_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                connection, owner, _ = self._idle.pop()
                await self._release(connection, owner)

    async def _release(self, connection: Any, owner: object) -> None:
        if True:  # ASYNC
            if owner is not connections.async_owner():
                # A loop that is closed does not let it be closed; redis-py forgets it then.
                with contextlib.suppress(RuntimeError):
                    await redispy.async_close_quietly(connection)
        await connections.async_release(self._pool, connection)

    if True:  # ASYNC

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
                            "uses it is running; make a filter or lock with a client of its own "
                            "for each loop"
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
                await self.release_idle()
            sources: list[Source] = [connections.own_pool(self.client)]
            if self._cluster is not None:
                sources = list(self._cluster.nodes_manager.nodes_cache.values())
            for source in sources:
                # redis-py forgets a connection whose loop does not let it be closed.
                with contextlib.suppress(RuntimeError, RedisError, OSError):
                    await source.disconnect()

    async def source_of(self, key: str) -> Source:
        """Return what connections for a key come from; ConnectionLost where no server has it."""
        if True:  # ASYNC
            await self.be_on_running_loop()
        if self._cluster is None:
            return self.client.connection_pool
        try:
            if True:  # ASYNC
                await self._cluster.initialize()
            return cluster.source_of_key(self._cluster, key)
        except (RedisError, RedisClusterException, OSError) as error:
            await self._look_for_nodes()
            lost = f"no server of the cluster is known to have key {key!r}: {error}"
            raise ConnectionLost(RedisConnectionError(lost), sent=False, replies=[]) from None

    async def _take(self, source: Source) -> Taken:
        bound = None
        if True:  # ASYNC
            # A node that does not answer must not hold up what goes to the others.
            name = str(getattr(source, "name", ""))
            bound = self._bounds.get(name)
            if bound is None:
                most = min(MOST_AT_ONCE, connections.max_connections(source, MOST_AT_ONCE))
                bound = self._bounds[name] = asyncio.Semaphore(max(1, most))
            await bound.acquire()
        try:
            connection = await self._take_connection(source)
        except BaseException as error:
            if bound is not None:
                bound.release()
            if not isinstance(error, (RedisError, OSError)):
                raise
            await self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from None
        now = time.monotonic()
        if not self._asks_role or now < getattr(connection, _LOOK_AT, 0.0):
            return Taken(source, connection, None, bound)
        taken = Taken(source, connection, [], bound)
        try:
            setattr(connection, _LOOK_AT, now + ROLE_SECONDS)
            # The answer is read with those of the request, so this costs no round trip.
            await redispy.async_send(connection, _HELLO)
        except BaseException as error:
            await self._drop(taken)
            if not isinstance(error, (RedisError, OSError)):
                raise
            raise ConnectionLost(error, sent=False, replies=[]) from None
        return taken

    async def _take_connection(self, source: Source) -> Any:
        try:
            connection, owner, used = self._idle.pop()
        except IndexError:
            pass
        else:
            if source is self._pool and owner == connections.async_owner():
                if redispy.async_is_usable(connection, used):
                    return connection
                if not redispy.is_marked(connection):
                    await redispy.async_close_quietly(connection)
            await self._release(connection, owner)
        return await connections.async_get_connection(source)

    async def _give_back(self, taken: Taken) -> None:
        connection, now = taken.connection, time.monotonic()
        try:
            if taken.source is not self._pool or self._idle:
                await connections.async_release(taken.source, connection)
            # One that was closed would be opened in the middle of a request.
            elif now >= self._release_at or not redispy.async_is_open(connection):
                self._release_at = now + KEPT_SECONDS
                await connections.async_release(taken.source, connection)
            else:
                self._idle.append((connection, connections.async_owner(), now))
        finally:
            if taken.bound is not None:
                taken.bound.release()

    async def _drop(self, taken: Taken) -> None:
        """Close a connection that is in the middle of something, and give it back."""
        try:
            await redispy.async_close_quietly(taken.connection)
        finally:
            await self._give_back(taken)

    async def _end(self, taken: Taken, commands: Sequence[Command], replies: Replies) -> None:
        """Give a connection back, or close it if MULTI or WATCH may be pending on it.

        Its next user would find its commands queued, or its EXEC refused.
        """
        if commands[-1] in (EXEC, UNWATCH) and not ends_transaction(commands, replies):
            await self._drop(taken)
        else:
            await self._give_back(taken)

    if True:  # ASYNC

        async def _abandon(
            self, taken: Taken, error: BaseException, count: int, replies: Replies
        ) -> None:
            """Drop a connection after an error, with `count` commands written."""
            try:
                if isinstance(error, asyncio.CancelledError):
                    # What was sent is carried out; what the caller does must not overtake it.
                    with contextlib.suppress(RedisError, OSError):
                        await finish(self._read_soon(taken, count, replies))
            finally:
                await self._drop(taken)

        async def _read_soon(self, taken: Taken, count: int, replies: Replies) -> None:
            async with asyncio.timeout(CANCELLED_SECONDS):
                await self._read(taken, count, replies)

    else:

        def _abandon(self, taken: Taken, *_: object) -> None:
            self._drop(taken)

    async def _exchange(
        self, taken: Taken, commands: Sequence[Command], room: memoryview | None = None
    ) -> Replies:
        connection = taken.connection
        replies: Replies = []
        # A command of which a thread's socket did not take the last byte is carried out by no
        # server. What asyncio has buffered may be sent.
        sent = len(commands) > 1
        if True:  # ASYNC
            sent, room = True, None
        try:
            is_one = len(commands) == 1 and type(commands[0]) is bytes
            await redispy.async_send(
                connection,
                *(commands if is_one else join_commands(commands)),
            )
            sent = True
            if room is not None and taken.role is None:
                redispy.receive(connection, len(commands), room, replies)
            await self._read(taken, len(commands), replies)
            await self._look_at_role(taken, replies)
        except (RedisError, OSError) as error:
            await self._drop(taken)
            # What is refused while a closed connection is opened again was not sent.
            sent = sent and not is_refusal(error)
            raise ConnectionLost(error, sent=sent, replies=replies) from None
        except BaseException as error:
            await self._abandon(taken, error, len(commands), replies)
            raise
        return replies

    async def _read(self, taken: Taken, count: int, replies: Replies) -> None:
        """Read until there are `count` replies; an error that is a reply stands for itself."""
        if count and taken.role is not None and not taken.role:
            await self._read_more(taken.connection, 1, taken.role)
        await self._read_more(taken.connection, count, replies)

    async def _read_more(self, connection: Any, count: int, replies: Replies) -> None:
        while len(replies) < count:
            try:
                reply = await self._read_reply(connection)
            except (RedisError, OSError) as error:
                if not is_refusal(error):
                    raise
                if ends_connection(error):
                    await redispy.async_close_quietly(connection)
                    replies += [error] * (count - len(replies))
                else:
                    replies.append(error)
            else:
                replies.append(reply)

    async def _look_at_role(self, taken: Taken, replies: Replies) -> None:
        """Leave a server that was the master and is a replica now.

        An add is refused there. A read would be answered without what was added since, so it
        counts as refused. A client whose server never was the master is meant to ask a replica.
        """
        is_left = ReadOnlyError in map(type, replies)
        if taken.role and not is_left:
            is_replica = connections.says_replica(taken.role[0])
            # A user or a proxy may lack the command; a busy server answers it later.
            self._asks_role = not is_missing(taken.role[0])
            self._was_master = self._was_master or is_replica is False
            if is_replica and self._was_master:
                replies.clear()
                await self._leave_replica(taken)
                raise ReadOnlyError("the server was the master and is a replica now")
        if is_left:
            await self._leave_replica(taken)

    async def _leave_replica(self, taken: Taken) -> None:
        await redispy.async_close_quietly(taken.connection)
        with contextlib.suppress(AttributeError, RedisError, OSError):
            await taken.source.disconnect(inuse_connections=False)

    async def _note_moved(self, refusal: Exception) -> None:
        if isinstance(refusal, MovedError) and refusal.host:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                await cluster.async_note_moved(self._cluster, refusal)
        elif isinstance(refusal, (MovedError, ClusterDownError)):
            await self._look_for_nodes()

    async def _look_for_nodes(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                await self._cluster.nodes_manager.initialize()
