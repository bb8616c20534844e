# Written by tools/async_to_sync.py from bloomlock/runtime/_async/exchange.py; change that.
"""Runs cores over a client: takes its connections and sends commands over them.

Commands are sent as bytes over the client's own connections: redis-py's `execute_command` would
retry an update by itself, which loses items (the second try finds what the first one added).
"""

from __future__ import annotations

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

from bloomlock.clock import sleep
from bloomlock.commands import EXEC, UNWATCH, encode_command, ends_transaction, join_commands
from bloomlock.effects import NO_LIMIT, ConnectionLost, Limit, Request, shorten_traceback
from bloomlock.errors import BloomlockError, FilterNotFoundError
from bloomlock.refusals import ends_connection, explain, is_missing, is_refusal
from bloomlock.runtime import cluster, connections, redispy
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


class Exchange:
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
        self._read_reply = redispy.reply_reader(pool)
        # A cluster's replicas answer MOVED.
        self._asks_role = self._cluster is None
        self._was_master = False

    def run(self, core: Core[T]) -> T:  # noqa: C901, PLR0912 - one loop
        subscriptions: list[Any] = []
        limit = NO_LIMIT
        answer: Any
        step: Any = None
        try:
            step = next(core)
            while True:
                try:
                    # What nearly all steps are comes first: a call is one of them and little else.
                    if type(step) is Request and limit is NO_LIMIT:
                        answer = self._request(step)
                    elif isinstance(step, Limit):
                        limit, answer = step, None
                    else:
                        answer = self._carry_out(step, limit, subscriptions)
                except BaseException as error:
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

    def _request(self, request: Request, limit: Limit = NO_LIMIT) -> Replies:
        taken = self._take(self.source_of(request.key))
        replies = self._exchange(taken, request.commands, request.room)
        self._end(taken, request.commands, replies)
        if self._cluster is not None:
            self._follow(request, replies, limit)
        return replies

    def _carry_out(self, step: Step, limit: Limit, subscriptions: list[Any]) -> Any:
        """Carry out a step that is not one request."""
        raise NotImplementedError

    def _follow(self, request: Request | Pipeline, replies: Replies, limit: Limit) -> None:
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
            sleep(pause)
            again = [commands[index] for index in refused]
            if type(refusal) is AskError:  # MovedError is one too
                again = cluster.with_asking(again)
            try:
                taken = self._take(self._source_after(refusal, request.key))
                answers = self._exchange(taken, again)
            except ConnectionLost as lost:
                # It stands for each answer that is missing, and is not raised, because the other
                # commands of the request were carried out.
                answers = [*lost.replies, *[lost] * (len(again) - len(lost.replies))]
            else:
                self._end(taken, again, answers)
            pairs = zip(again, answers, strict=True)
            answers = [answer for command, answer in pairs if command != cluster.ASKING]
            for index, answer in zip(refused, answers, strict=True):
                replies[index] = answer

    def _source_after(self, refusal: Exception, key: str) -> Source:
        self._note_moved(refusal)
        if isinstance(refusal, AskError):
            source = cluster.source_of_address(self._cluster, refusal.host, refusal.port)
            if source is not None:
                return source
            self._look_for_nodes()
        return self.source_of(key)

    def release_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                connection, owner, _ = self._idle.pop()
                self._release(connection, owner)

    def _release(self, connection: Any, owner: object) -> None:
        connections.release(self._pool, connection)

    def source_of(self, key: str) -> Source:
        """Return what connections for a key come from; ConnectionLost where no server has it."""
        if self._cluster is None:
            return self.client.connection_pool
        try:
            return cluster.source_of_key(self._cluster, key)
        except (RedisError, RedisClusterException, OSError) as error:
            self._look_for_nodes()
            lost = f"no server of the cluster is known to have key {key!r}: {error}"
            raise ConnectionLost(RedisConnectionError(lost), sent=False, replies=[]) from None

    def _take(self, source: Source) -> Taken:
        bound = None
        try:
            connection = self._take_connection(source)
        except BaseException as error:
            if bound is not None:
                bound.release()
            if not isinstance(error, (RedisError, OSError)):
                raise
            self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from None
        now = time.monotonic()
        if not self._asks_role or now < getattr(connection, _LOOK_AT, 0.0):
            return Taken(source, connection, None, bound)
        taken = Taken(source, connection, [], bound)
        try:
            setattr(connection, _LOOK_AT, now + ROLE_SECONDS)
            # The answer is read with those of the request, so this costs no round trip.
            redispy.send(connection, _HELLO)
        except BaseException as error:
            self._drop(taken)
            if not isinstance(error, (RedisError, OSError)):
                raise
            raise ConnectionLost(error, sent=False, replies=[]) from None
        return taken

    def _take_connection(self, source: Source) -> Any:
        try:
            connection, owner, used = self._idle.pop()
        except IndexError:
            pass
        else:
            if source is self._pool and owner == connections.owner():
                if redispy.is_usable(connection, used):
                    return connection
                if not redispy.is_marked(connection):
                    redispy.close_quietly(connection)
            self._release(connection, owner)
        return connections.get_connection(source)

    def _give_back(self, taken: Taken) -> None:
        connection, now = taken.connection, time.monotonic()
        try:
            if taken.source is not self._pool or self._idle:
                connections.release(taken.source, connection)
            # One that was closed would be opened in the middle of a request.
            elif now >= self._release_at or not redispy.is_open(connection):
                self._release_at = now + KEPT_SECONDS
                connections.release(taken.source, connection)
            else:
                self._idle.append((connection, connections.owner(), now))
        finally:
            if taken.bound is not None:
                taken.bound.release()

    def _drop(self, taken: Taken) -> None:
        """Close a connection that is in the middle of something, and give it back."""
        try:
            redispy.close_quietly(taken.connection)
        finally:
            self._give_back(taken)

    def _end(self, taken: Taken, commands: Sequence[Command], replies: Replies) -> None:
        """Give a connection back, or close it if MULTI or WATCH may be pending on it.

        Its next user would find its commands queued, or its EXEC refused.
        """
        if commands[-1] in (EXEC, UNWATCH) and not ends_transaction(commands, replies):
            self._drop(taken)
        else:
            self._give_back(taken)

    def _abandon(self, taken: Taken, *_: object) -> None:
        self._drop(taken)

    def _exchange(
        self, taken: Taken, commands: Sequence[Command], room: memoryview | None = None
    ) -> Replies:
        connection = taken.connection
        replies: Replies = []
        # A command of which a thread's socket did not take the last byte is carried out by no
        # server. What asyncio has buffered may be sent.
        sent = len(commands) > 1
        try:
            is_one = len(commands) == 1 and type(commands[0]) is bytes
            redispy.send(
                connection,
                *(commands if is_one else join_commands(commands)),
            )
            sent = True
            if room is not None and taken.role is None:
                redispy.receive(connection, len(commands), room, replies)
            self._read(taken, len(commands), replies)
            self._look_at_role(taken, replies)
        except (RedisError, OSError) as error:
            self._drop(taken)
            # What is refused while a closed connection is opened again was not sent.
            sent = sent and not is_refusal(error)
            raise ConnectionLost(error, sent=sent, replies=replies) from None
        except BaseException as error:
            self._abandon(taken, error, len(commands), replies)
            raise
        return replies

    def _read(self, taken: Taken, count: int, replies: Replies) -> None:
        """Read until there are `count` replies; an error that is a reply stands for itself."""
        if count and taken.role is not None and not taken.role:
            self._read_more(taken.connection, 1, taken.role)
        self._read_more(taken.connection, count, replies)

    def _read_more(self, connection: Any, count: int, replies: Replies) -> None:
        while len(replies) < count:
            try:
                reply = self._read_reply(connection)
            except (RedisError, OSError) as error:
                if not is_refusal(error):
                    raise
                if ends_connection(error):
                    redispy.close_quietly(connection)
                    replies += [error] * (count - len(replies))
                else:
                    replies.append(error)
            else:
                replies.append(reply)

    def _look_at_role(self, taken: Taken, replies: Replies) -> None:
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
                self._leave_replica(taken)
                raise ReadOnlyError("the server was the master and is a replica now")
        if is_left:
            self._leave_replica(taken)

    def _leave_replica(self, taken: Taken) -> None:
        redispy.close_quietly(taken.connection)
        with contextlib.suppress(AttributeError, RedisError, OSError):
            taken.source.disconnect(inuse_connections=False)

    def _note_moved(self, refusal: Exception) -> None:
        if isinstance(refusal, MovedError) and refusal.host:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                cluster.note_moved(self._cluster, refusal)
        elif isinstance(refusal, (MovedError, ClusterDownError)):
            self._look_for_nodes()

    def _look_for_nodes(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                self._cluster.nodes_manager.initialize()
