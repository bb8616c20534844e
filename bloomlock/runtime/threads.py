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
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from redis.exceptions import AskError, MovedError, ReadOnlyError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bloomlock.commands import EXEC, Replies, ends_transaction, join_commands
from bloomlock.effects import (
    NO_LIMIT,
    Behind,
    Call,
    Clock,
    ConnectionLost,
    Core,
    Elsewhere,
    FanOut,
    FreeMemory,
    IsCluster,
    Limit,
    Parallel,
    Pause,
    Pipeline,
    Request,
)
from bloomlock.parallel import answered_of, leaves_transaction, outcomes_of, writes_of
from bloomlock.refusals import ends_connection, is_refusal, is_slot_refusal

from . import redispy
from .clients import free_memory
from .clock import boot_clock
from .cluster import (
    Again,
    ClientServers,
    Pauses,
    Sent,
    find_servers,
    follow,
    is_ask,
    may_wait,
    no_server,
    note_moved,
    pool_of_address,
    pool_of_key,
)
from .scopes import STEPS, Scope
from .subscriptions import Listeners
from .workers import fan_out, out_of_time, run_behind, within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import redis

    from bloomlock.commands import Command
    from bloomlock.effects import Outcome, Subscribe
    from bloomlock.parallel import Write

    from .subscriptions import Listener

T = TypeVar("T")
Taken: TypeAlias = tuple[Any, Any]
"""A redis-py connection pool and a connection taken from it."""

KEPT_SECONDS = 5.0
"""How long a connection in use is kept out of the pool, whose release has hooks."""
FRESH_SECONDS = 0.05
"""A connection used so recently is not asked whether it is still open."""


class Threads(ClientServers):
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
        pool = redispy.own_pool(client)
        self._keeps_idle = redispy.may_keep_one(pool)
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

    def _carry_out(
        self, step: Request | Pipeline, taken: Taken | None, until: float | None
    ) -> tuple[Replies, Taken | None]:
        """Carry out what a server is asked; return a connection too that is to be held on."""
        if isinstance(step, Pipeline):
            (outcome,) = self.ask_all((step,), until)
            if isinstance(outcome, ConnectionLost):
                raise outcome
            return outcome, taken
        if taken or step.hold:
            return self._request_on(taken, step, until)
        return self._request(step, until), None

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

    def settings_of(self, key: str) -> Mapping[str, Any]:
        """Return the settings of the connections to the server of a key."""
        return redispy.settings_of(self._source(key))

    def _request(self, request: Request, until: float | None = None) -> Replies:
        if self._cluster is not None:
            return self._request_of_cluster(request, until)
        commands = request.commands
        taken = self._take(self.client.connection_pool)
        replies = self._exchange(taken, commands, request.room)
        if commands[-1] == EXEC:
            self._end(taken, commands, replies)
        else:
            self._give_back(taken)
        return replies

    def _request_of_cluster(self, request: Request, until: float | None) -> Replies:
        taken = self._take(self._source_of(request.key))
        replies = self._exchange(taken, request.commands, request.room)
        self._end(taken, request.commands, replies)
        self._follow(Sent(request.key, request.commands, replies), until, waits=request.waits)
        return replies

    def _request_on(
        self, taken: Taken | None, request: Request, until: float | None
    ) -> tuple[Replies, Taken | None]:
        """Use the connection that was held, if one was; return it too if it is to be held on."""
        if taken is None and self._cluster is not None:
            return self._begin_to_hold(request, until)
        watches = taken is not None
        taken = taken or self._take(self._source(request.key))
        replies = self._exchange(taken, request.commands)
        if self._cluster is not None and (refusal := _refusal_of(replies)) is not None:
            # The slot has moved from under the WATCH, which has to begin anew at another server.
            self._note_moved(refusal)
            self._drop(taken)
            return replies, None
        if request.hold:
            return replies, taken
        self._end(taken, request.commands, replies, watches=watches)
        return replies, None

    def _begin_to_hold(self, request: Request, until: float | None) -> tuple[Replies, Taken | None]:
        """Send a first request under WATCH to the server that has the slot, when one has it."""
        pauses = Pauses(until, waits=request.waits)
        while True:
            taken = self._take(self._source_of(request.key))
            replies = self._exchange(taken, request.commands)
            if (refusal := _refusal_of(replies)) is None:
                return replies, taken
            self._drop(taken)
            self._note_moved(refusal)
            pause = pauses.next_s(refusal, is_redirection=not is_ask(refusal))
            if pause is None:
                error = pauses.explain(request.key, refusal) if request.waits else refusal
                return [error] * len(replies), None
            time.sleep(pause)

    def _follow(self, sent: Sent, until: float | None, *, waits: bool) -> None:
        """Send again what a cluster refused because a slot moves, until all is answered."""
        if not any(map(is_slot_refusal, sent.replies)):
            return
        steps = follow(sent, until, waits=waits)
        answer: Any = None
        with contextlib.suppress(StopIteration):
            while True:
                step = steps.send(answer)
                if isinstance(step, Again):
                    answer = self._send_again(step)
                else:
                    time.sleep(step.seconds)
                    answer = None

    def _send_again(self, again: Again) -> Outcome:
        refusal = again.refusal
        try:
            self._note_moved(refusal)
            source = None
            if isinstance(refusal, AskError):
                source = pool_of_address(self._cluster, refusal.host, refusal.port)
                if source is None:
                    self._look_for_nodes()
            taken = self._take(source or self._source_of(again.key))
            replies = self._exchange(taken, again.commands)
        except ConnectionLost as lost:
            return lost
        except (RedisError, RedisClusterException, OSError) as error:
            return ConnectionLost(error, sent=False, replies=[])
        self._end(taken, again.commands, replies)
        return replies

    def _note_moved(self, refusal: Exception) -> None:
        if isinstance(refusal, MovedError):
            if refusal.host:
                note_moved(self._cluster, refusal)
            else:
                self._look_for_nodes()

    def _look_for_nodes(self) -> None:
        """Ask a cluster anew who serves what, after one of its servers was not reachable."""
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                find_servers(self._cluster)

    def _by_source(
        self, requests: Sequence[Request | Pipeline], outcomes: list[Any]
    ) -> list[tuple[Any, Sequence[int]]]:
        """Return the indices of the requests for each server; note those that have none."""
        if self._cluster is None:
            return [(self._source(""), range(len(requests)))]
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index, request in enumerate(requests):
            try:
                source = self._source_of(request.key)
            except ConnectionLost as lost:
                outcomes[index] = lost
            else:
                groups.setdefault(id(source), (source, []))[1].append(index)
        # In one order for all threads, which may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

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

    def _source_of(self, key: str) -> Any:
        """Return what connections for a key come from; ConnectionLost where no server has it."""
        if self._cluster is None:
            return self._source(key)
        try:
            return self._source(key)
        except (RedisError, RedisClusterException, OSError) as error:
            self._look_for_nodes()
            raise ConnectionLost(no_server(key, error), sent=False, replies=[]) from None

    def _take(self, pool: Any) -> Taken:
        try:
            taken, used = self._idle.pop()
        except IndexError:
            taken, used = None, 0.0
        if taken is None:
            return self._take_from(pool)
        kept_pool, connection = taken
        fresh = kept_pool is pool and time.monotonic() - used < FRESH_SECONDS
        if fresh and connection.pid == os.getpid() and not redispy.is_marked(connection):
            return taken
        return taken if self._is_usable(taken, pool) else self._take_from(pool)

    def _take_from(self, pool: Any) -> Taken:
        if _LEFT:
            _release_all(_LEFT)
        try:
            return pool, pool.get_connection()
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
        if not redispy.may_be_kept(connection):
            kept_pool.release(connection)
            return False
        try:
            # Readable means closed by the server, or that there are replies without a request.
            usable = kept_pool is pool and not redispy.is_readable(connection)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            usable = False
        if not usable:
            self._drop(taken)
        return usable

    def _end(
        self, taken: Taken, commands: Sequence[Command], replies: Replies, *, watches: bool = False
    ) -> None:
        """Give a connection back, or close it if MULTI or WATCH may be pending on it.

        Its next user would find its commands queued, or its EXEC refused.
        """
        if (watches or commands[-1] == EXEC) and not ends_transaction(commands, replies):
            self._drop(taken)
        else:
            self._give_back(taken)

    def _give_back(self, taken: Taken) -> None:
        pool, connection = taken
        if self._keeps_idle and not self._idle:
            now = time.monotonic()
            if now < self._release_at and not redispy.is_marked(connection):
                self._idle.append((taken, now))
                return
            self._release_at = now + KEPT_SECONDS
        pool.release(connection)

    @staticmethod
    def _drop(taken: Taken) -> None:
        """Give back a connection that is in the middle of something."""
        pool, connection = taken
        redispy.close_quietly(connection)
        pool.release(connection)

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

    @staticmethod
    def _leave_replica(taken: Taken) -> None:
        """Close the connections to a server that was the master and is a replica now.

        Opened again they find the new master: by Sentinel, or behind the same address.
        """
        pool, connection = taken
        redispy.close_quietly(connection)
        with contextlib.suppress(RedisError, OSError):
            pool.disconnect(inuse_connections=False)

    def _read(self, connection: Any, count: int, replies: Replies) -> None:
        """Read until there are `count` replies."""
        while len(replies) < count:
            try:
                reply = self._read_reply(connection)
            except (RedisError, OSError) as error:
                self._take_refusal(connection, error, count, replies)
            else:
                replies.append(reply)

    @staticmethod
    def _take_refusal(connection: Any, error: Exception, count: int, replies: Replies) -> None:
        """Take an error that is a reply, or `count` of them if no more will come; else raise it."""
        if not is_refusal(error):
            raise error
        if ends_connection(error):
            redispy.close_quietly(connection)
            replies += [error] * (count - len(replies))
        else:
            replies.append(error)


def _refusal_of(replies: Replies) -> Exception | None:
    return next(filter(is_slot_refusal, replies), None)


def _pause(_: Threads, step: Pause) -> None:
    time.sleep(step.seconds)


def _clock(_: Threads, __: Clock) -> Callable[[], float]:
    return boot_clock


def _parallel(runtime: Threads, step: Parallel) -> list[Outcome]:
    return runtime.ask_all(step.requests)


def _free_memory(runtime: Threads, step: FreeMemory) -> int | None:
    return free_memory(runtime.settings_of(step.key))


def _elsewhere(_: Threads, step: Elsewhere) -> tuple[Any, Exception | None]:
    try:
        return step.run(step.core), None
    except Exception as error:  # noqa: BLE001 - the core's to judge
        return None, error


def _call(_: Threads, step: Call) -> object:
    return step.function(*step.args)


def _is_cluster(runtime: Threads, _: IsCluster) -> bool:
    return runtime.is_cluster


_EFFECTS: dict[type, Callable[[Threads, Any], Any]] = {
    Pause: _pause,
    Clock: _clock,
    Behind: Threads.run_behind,
    Parallel: _parallel,
    FanOut: Threads.fan_out,
    FreeMemory: _free_memory,
    Elsewhere: _elsewhere,
    Call: _call,
    IsCluster: _is_cluster,
}
"""Steps that leave nothing open; a scope carries out the others."""


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
        redispy.renew_lock(redispy.own_pool(runtime.client))


os.register_at_fork(after_in_child=_renew_pool_locks)


_LEFT: list[tuple[Taken, float]] = []
"""Idle connections of runtimes that are no more, which could not be given back at their end."""


def _release_or_leave(idle: list[tuple[Taken, float]]) -> None:
    """Give an idle connection back at the end of its runtime, which may come at any moment.

    In the middle of redis-py's own work on its pool it is left for the next request of a runtime:
    a pool that is being closed fails if a connection comes back.
    """
    for (pool, _), _ in list(idle):
        if redispy.is_in_use_here(pool):
            _LEFT.extend(idle)
            return
    _release_all(idle)


def _release_all(idle: list[tuple[Taken, float]]) -> None:
    # Another thread may take the last one in between.
    with contextlib.suppress(IndexError):
        while True:
            (pool, connection), _ = idle.pop()
            pool.release(connection)
