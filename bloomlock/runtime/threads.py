"""Drives the cores over a redis-py client for threads.

Commands are sent as bytes over the client's own connections: redis-py's `execute_command` would
retry an update by itself, which loses items (the second try finds what the first one added).
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

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
from bloomlock.parallel import answered_of, leaves_transaction, outcomes_of, writes_of
from bloomlock.refusals import is_refusal

from . import pools, redispy
from ._sync.scopes import STEPS, Scope
from ._sync.sending import EFFECTS, Sending
from .clock import boot_clock
from .cluster import (
    Sent,
    may_wait,
    pool_of_key,
)
from .connections import Taken
from .subscriptions import Listeners
from .workers import fan_out, out_of_time, run_behind, within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    import redis

    from bloomlock.commands import Command
    from bloomlock.effects import Outcome, Subscribe
    from bloomlock.parallel import Write

    from .subscriptions import Listener

T = TypeVar("T")

KEPT_SECONDS = 5.0
"""How long a connection in use is kept out of the pool, whose release has hooks."""
FRESH_SECONDS = 0.05
"""A connection used so recently is not asked whether it is still open."""


class Threads(Sending):
    """Runs cores; safe to use from many threads. Get one by `threads_for`.

    One idle connection is kept out of the client's pool between requests, because taking one from
    the pool costs as much as a quarter of a round trip. It goes back by the pool's own release
    after some seconds of use, in a child of fork, and before it is used when redis-py has marked
    it: for another server after a maintenance hand-off, or for a new credential. Pools that hold
    few connections, or make callers wait for one, are left alone, and so are Sentinel's, which look
    at each connection that comes back whether its server is still the master.
    """

    def __init__(
        self, client: redis.Redis | redis.RedisCluster, members: Sequence[Threads] = ()
    ) -> None:
        super().__init__(client, members)
        # Each with the time at which it was used last.
        self._idle: list[tuple[Taken, float]] = []
        # The pool counts the idle connection as used; it must not do so for ever.
        weakref.finalize(self, _release_or_leave, self._idle).atexit = False
        self._release_at = time.monotonic() + KEPT_SECONDS
        self._listeners = Listeners()
        pool = pools.own_pool(client)
        self._keeps_idle = pools.may_keep_one(pool)
        self._read_reply = redispy.reply_reader(pool)

    def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""
        held: Taken | None = None
        scope: Scope | None = None
        limit = NO_LIMIT
        replies: Any
        try:
            step = next(core)
            while True:
                try:
                    # What nearly all steps are comes first: a call is one of them and little else.
                    if type(step) is Request and limit is NO_LIMIT and not (held or step.hold):
                        replies = self._request(step)
                    elif type(step) in STEPS:
                        scope = scope or Scope(self)
                        replies = STEPS[type(step)](scope, step)
                    elif isinstance(step, (Request, Pipeline)):
                        taken, held = held, None
                        replies, held = self._within(limit, step, taken)
                    elif isinstance(step, Limit):
                        limit, replies = step, None
                    else:
                        replies = _EFFECTS[type(step)](self, step)
                except BaseException as error:  # noqa: BLE001 - the core raises it again
                    step = core.throw(error)
                else:
                    step = core.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            if held is not None or scope is not None:
                self._close(held, scope)

    def _close(self, held: Taken | None, scope: Scope | None) -> None:
        """Close what a core has left open."""
        if held is not None:
            self._drop(held)
        if scope is not None:
            scope.close()

    def _within(
        self, limit: Limit, step: Request | Pipeline, taken: Taken | None
    ) -> tuple[Replies, Taken | None]:
        """Carry out a step; ConnectionLost at the end of the limit, while it goes on."""
        if limit.until is None:
            return self._carry_out(step, taken, None)
        if (seconds := limit.until - boot_clock()) <= 0:
            self._drop_late(([], taken))
            raise out_of_time(sent=False)
        work = partial(self._carry_out, step, taken, limit.until)
        return within(seconds, limit.line, work, self._drop_late)

    def _drop_late(self, answer: tuple[Replies, Taken | None]) -> None:
        if answer[1] is not None:
            self._drop(answer[1])

    def close(self) -> None:
        """Give the idle connection back, and close those that no core listens on."""
        _release_all(self._idle)
        _release_all(_LEFT)
        self._listeners.close()

    def run_behind(self, step: Behind) -> None:
        """Carry out a core after what goes on in a line; wait for its end, but not for long."""
        run_behind(step.line, partial(self.run, step.core), step.seconds)

    def fan_out(self, step: FanOut) -> list[Any]:
        """Run a core at each server; a silent server keeps its thread, but not the caller."""
        return fan_out(self.members, step)

    def subscribe(self, step: Subscribe) -> Listener | None:
        """Return a connection that listens, or None if there can be none."""
        return self._listeners.take(self._source(step.key), step)

    def unsubscribe(self, listener: Listener) -> None:
        """Keep a listener for another core, or close it."""
        self._listeners.give_back(listener)

    def ask_all(
        self, requests: Sequence[Request | Pipeline], until: float | None = None
    ) -> list[Outcome]:
        """Send requests to all their servers at once; return what came of each."""
        outcomes: list[Any] = [None] * len(requests)
        answered: list[Sent] = []
        turns = [
            self._ask_server(source, requests, indices, outcomes, answered)
            for source, indices in self._by_source(requests, outcomes)
        ]
        try:
            # Every server has its next write before any reply is waited for longer than that.
            writing = turns
            while writing:
                writing = [turn for turn in writing if next(turn, False)]
            for turn in turns:
                next(turn, None)
        finally:
            for turn in turns:
                turn.close()
        waits = any(map(may_wait, requests))
        for sent in answered:
            self._follow(sent, until, waits=waits)
        return outcomes

    def _ask_server(
        self,
        source: Any,
        requests: Sequence[Request | Pipeline],
        indices: Sequence[int],
        outcomes: list[Any],
        answered: list[Sent],
    ) -> Generator[bool, None, None]:
        """Carry out requests to one server; yield True after each write, then False once.

        In a cluster those that were answered are noted in `answered`.
        """
        mine = [requests[index] for index in indices]
        sent: list[Command] | None = None if self._cluster is None else []
        replies: Replies = []
        lost: ConnectionLost | None = None
        try:
            taken = self._take(source)
            yield from self._exchange_many(taken, writes_of(mine, sent), replies)
        except ConnectionLost as one:
            lost = one
        each = outcomes_of(mine, replies, lost)
        if lost is None and leaves_transaction(mine, each):
            self._drop(taken)
        elif lost is None:
            self._give_back(taken)
        answered += starmap(Sent, answered_of(mine, each, sent or ()))
        for index, outcome in zip(indices, each, strict=True):
            outcomes[index] = outcome

    def _source(self, key: str) -> Any:
        if self._cluster is None:
            return self.client.connection_pool
        return pool_of_key(self._cluster, key)

    def _take(self, pool: Any) -> Taken:
        try:
            taken, used = self._idle.pop()
        except IndexError:
            taken, used = None, 0.0
        if taken is None:
            return self._take_from(pool)
        kept_pool, connection = taken
        fresh = kept_pool is pool and time.monotonic() - used < FRESH_SECONDS
        if fresh and connection.pid == os.getpid() and not pools.is_marked(connection):
            return taken
        return taken if self._is_usable(taken, pool) else self._take_from(pool)

    def _take_from(self, pool: Any) -> Taken:
        if _LEFT:
            _release_all(_LEFT)
        try:
            return Taken(pool, pool.get_connection())
        except (RedisError, OSError) as error:
            self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from None
        except BaseException:
            # KeyboardInterrupt while it connects leaves redis-py a connection of no use.
            pool.disconnect(inuse_connections=False)
            raise

    def _is_usable(self, taken: Taken, pool: Any) -> bool:
        """Look at a connection that was kept; it is given back, or closed, if it is of no use."""
        kept_pool, connection = taken
        if not pools.may_be_kept(connection):
            kept_pool.release(connection)
            return False
        try:
            # Readable means closed by the server, or that there are replies without a request.
            usable = kept_pool is pool and not pools.is_readable(connection)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            usable = False
        if not usable:
            self._drop(taken)
        return usable

    def _give_back(self, taken: Taken) -> None:
        pool, connection = taken
        if self._keeps_idle and not self._idle:
            now = time.monotonic()
            # One that was closed would be opened in the middle of a request.
            is_whole = pools.is_open(connection) and not pools.is_marked(connection)
            if is_whole and now < self._release_at:
                self._idle.append((taken, now))
                return
            self._release_at = now + KEPT_SECONDS
        pool.release(connection)

    def _drop(self, taken: Taken) -> None:
        redispy.close_quietly(taken.connection)
        taken.source.release(taken.connection)

    def _exchange(
        self, taken: Taken, commands: Sequence[Command], room: memoryview | None = None
    ) -> Replies:
        connection = taken[1]
        replies: Replies = []
        # A command of which the socket did not take the last byte is carried out by no server.
        sent = len(commands) > 1
        try:
            if not sent and isinstance(commands[0], bytes):
                redispy.send(connection, commands[0])
                sent = True
                try:
                    replies.append(self._read_reply(connection))
                except (RedisError, OSError) as error:
                    self._take_refusal(connection, error, 1, replies)
            else:
                redispy.send(connection, *join_commands(commands))
                if room is not None:
                    redispy.receive(connection, len(commands), room, replies)
                self._read(connection, len(commands), replies)
        except (RedisError, OSError) as error:
            self._drop(taken)
            # What is refused while a closed connection is opened again was not sent.
            sent = sent and not is_refusal(error)
            raise ConnectionLost(error, sent=sent, replies=replies) from None
        except BaseException:
            self._drop(taken)
            raise
        if ReadOnlyError in map(type, replies):
            self._leave_replica(taken)
        return replies

    def _exchange_many(
        self,
        taken: Taken,
        writes: Iterable[Write],
        replies: Replies,
    ) -> Generator[bool, None, None]:
        connection = taken[1]
        written = before = 0
        try:
            for answered, count, data in writes:
                self._read(connection, answered, replies)
                before, written = written, count
                redispy.send(connection, *data)
                yield True
            yield False
            self._read(connection, written, replies)
        except (RedisError, OSError) as error:
            self._drop(taken)
            # What is refused while a closed connection is opened again was not sent.
            left = (before if is_refusal(error) else written) > 0
            raise ConnectionLost(error, sent=left, replies=replies, written=written) from None
        except BaseException:
            self._drop(taken)
            raise
        if ReadOnlyError in map(type, replies):
            self._leave_replica(taken)

    def _read(self, connection: Any, count: int, replies: Replies) -> None:
        """Read until there are `count` replies."""
        while len(replies) < count:
            try:
                reply = self._read_reply(connection)
            except (RedisError, OSError) as error:
                self._take_refusal(connection, error, count, replies)
            else:
                replies.append(reply)


_EFFECTS: dict[type, Callable[[Any, Any], Any]] = {
    **EFFECTS,
    Behind: Threads.run_behind,
    FanOut: Threads.fan_out,
}


def threads_for(client: redis.Redis | redis.RedisCluster) -> Threads:
    """Return the runtime of a client, the same for all filters over it."""
    # A client's id is not given to another one while its runtime, which holds it, lives.
    shared = _SHARED.get(id(client))
    if shared is None:
        shared = _SHARED[id(client)] = Threads(client)
    return shared


def threads_over(clients: Sequence[redis.Redis | redis.RedisCluster]) -> Threads:
    """Return a runtime for cores that ask several servers, by FanOut only."""
    return Threads(clients[0], [threads_for(client) for client in clients])


_SHARED: weakref.WeakValueDictionary[int, Threads] = weakref.WeakValueDictionary()


def _renew_pool_locks() -> None:
    for runtime in list(_SHARED.values()):
        pools.renew_lock(pools.own_pool(runtime.client))


os.register_at_fork(after_in_child=_renew_pool_locks)


_LEFT: list[tuple[Taken, float]] = []
"""Idle connections of runtimes that are no more, which could not be given back at their end."""


def _release_or_leave(idle: list[tuple[Taken, float]]) -> None:
    """Give an idle connection back at the end of its runtime, which may come at any moment.

    In the middle of redis-py's own work on its pool it is left for the next request of a runtime:
    a pool that is being closed fails if a connection comes back.
    """
    for (pool, _), _ in list(idle):
        if pools.is_in_use_here(pool):
            _LEFT.extend(idle)
            return
    _release_all(idle)


def _release_all(idle: list[tuple[Taken, float]]) -> None:
    # Another thread may take the last one in between.
    with contextlib.suppress(IndexError):
        while True:
            (pool, connection), _ = idle.pop()
            pool.release(connection)
