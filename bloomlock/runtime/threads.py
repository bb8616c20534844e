"""Drives the cores over a redis-py client for threads.

Commands are sent as bytes over the client's own connections: redis-py's `execute_command` would
retry an update by itself, which loses items (the second try finds what the first one added).
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
import weakref
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ReadOnlyError, RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

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
from .clients import free_memory, not_a_manager
from .clock import boot_clock
from .cluster import Rounds, Sent, find_again, find_redirects, may_wait, no_server
from .subscriptions import Listener, connect_listener
from .workers import Line, out_of_time, run_behind, within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from bloomlock.effects import Command, Outcome
    from bloomlock.parallel import Write

    from .cluster import Again, Redirect

T = TypeVar("T")
Lease: TypeAlias = tuple[Any, Any]
"""A redis-py connection pool and a connection taken from it."""

IDLE_LISTENERS = 4
"""Connections kept for the next waits; each waiting thread has one of its own meanwhile."""
KEPT_SECONDS = 5.0
"""How long a connection in use is kept out of the pool, whose release has hooks."""
FRESH_SECONDS = 0.05
"""A connection used so recently is not asked whether it is still open."""


class Threads:
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
        self.client: Any = client
        self._members = members
        self._cluster: Any = client if isinstance(client, redis.RedisCluster) else None
        # Each with the time at which it was used last.
        self._idle: list[tuple[Lease, float]] = []
        # The pool counts the idle connection as used; it must not do so for ever.
        weakref.finalize(self, _release_all, self._idle).atexit = False
        self._release_at = time.monotonic() + KEPT_SECONDS
        self._listeners: list[Listener] = []
        pool = redispy.own_pool(client)
        self._keeps_idle = redispy.may_keep_one(pool)
        self._asks_sentinel = redispy.asks_sentinel(pool)
        self._read_reply = redispy.reply_reader(pool)

    @property
    def members(self) -> Sequence[Threads]:
        """The runtime of each server that a FanOut goes to."""
        return self._members or (self,)

    def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""
        held: Lease | None = None
        scope: _Scope | None = None
        limit = NO_LIMIT
        replies: Any
        try:
            step = next(core)
            while True:
                try:
                    # What nearly all steps are comes first: a call is one of them and little else.
                    if type(step) is Request and limit is NO_LIMIT and not (held or step.hold):
                        replies = self._request(step)
                    elif isinstance(step, (Request, Pipeline)):
                        lease, held = held, None
                        replies, held = self._within(limit, step, lease)
                    elif isinstance(step, Limit):
                        limit, replies = step, None
                    else:
                        scope = scope or _Scope(self)
                        replies = scope.carry_out(step)
                except ConnectionLost as lost:
                    step = core.throw(lost)
                else:
                    step = core.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            if held is not None:
                self._drop(held)
            if scope is not None:
                scope.close()

    def _within(
        self, limit: Limit, step: Request | Pipeline, lease: Lease | None
    ) -> tuple[Replies, Lease | None]:
        """Carry out a step; ConnectionLost at the end of the limit, while it goes on."""
        if limit.until is None:
            return self._carry_out(step, lease, None)
        if (seconds := limit.until - boot_clock()) <= 0:
            self._drop_late(([], lease))
            raise out_of_time(sent=False)
        work = partial(self._carry_out, step, lease, limit.until)
        return within(seconds, limit.line, work, self._drop_late)

    def _carry_out(
        self, step: Request | Pipeline, lease: Lease | None, until: float | None
    ) -> tuple[Replies, Lease | None]:
        """Carry out what a server is asked; return a connection too that is to be held on."""
        if isinstance(step, Pipeline):
            (outcome,) = self.ask_all((step,), until)
            if isinstance(outcome, ConnectionLost):
                raise outcome
            return outcome, lease
        if lease or step.hold:
            return self._request_on(lease, step, until)
        return self._request(step, until), None

    def _drop_late(self, answer: tuple[Replies, Lease | None]) -> None:
        if answer[1] is not None:
            self._drop(answer[1])

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

    def close(self) -> None:
        """Give the idle connection back, and close those that no core listens on."""
        _release_all(self._idle)
        with contextlib.suppress(IndexError):
            while True:
                self._listeners.pop().close()

    def run_behind(self, step: Behind) -> None:
        """Carry out a core after what goes on in a line; wait for its end, but not for long."""
        run_behind(step.line, partial(self.run, step.core), step.seconds)

    def fan_out(self, step: FanOut) -> list[Any]:
        """Run a core at each server; a silent server keeps its thread, but not the caller."""
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for server, core in enumerate(step.cores):
            Line.of(step.lines[server]).append(partial(self._run_at, server, core, arrived))
        num_out, until = len(answers), step.until
        while num_out:
            now = boot_clock()
            if until == step.until and step.is_enough(answers):
                until = step.end_of_grace(began, now)
            try:
                server, answer = arrived.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            answers[server] = answer
            num_out -= 1
        return answers

    def _run_at(
        self, server: int, core: Core[Any], arrived: queue.SimpleQueue[tuple[int, Any]]
    ) -> None:
        try:
            arrived.put((server, self.members[server].run(core)))
        except Exception as error:  # noqa: BLE001 - an answer of the FanOut
            arrived.put((server, error))

    def subscribe(self, step: Subscribe) -> Listener | None:
        """Return a connection that listens, or None if there can be none."""
        pool = self._source(step.key)
        # Of a cluster's nodes only the one that hands the lock on knows who listens there.
        others: list[Listener] = []
        try:
            while (listener := self._take_listener()) is not None:
                if listener.pool is not pool:
                    others.append(listener)
                elif listener.is_open():
                    return listener
                else:
                    listener.close()
        finally:
            self._listeners += others
        return connect_listener(pool, step.seconds) if step.connect else None

    def _take_listener(self) -> Listener | None:
        try:
            return self._listeners.pop()
        except IndexError:
            return None

    def settings_of(self, key: str) -> Mapping[str, Any]:
        """Return the settings of the connections to the server of a key."""
        return redispy.settings_of(self._source(key))

    def unsubscribe(self, listener: Listener) -> None:
        """Keep a listener for another core, or close it."""
        if listener.is_open() and len(self._listeners) < IDLE_LISTENERS:
            self._listeners.append(listener)
        else:
            listener.close()

    def _request(self, request: Request, until: float | None = None) -> Replies:
        if self._cluster is None:
            lease = self._take(self.client.connection_pool)
            replies = self._exchange(lease, request.commands, request.room)
            self._end(lease, request.commands, replies)
            return replies
        if request.replica:
            return self._ask_replica(request, until)
        lease = self._take(self._source_of(request.key))
        replies = self._exchange(lease, request.commands, request.room)
        self._end(lease, request.commands, replies)
        sent = Sent(request.key, request.commands, replies)
        self._follow([sent], until, waits=request.waits)
        return replies

    def _ask_replica(self, request: Request, until: float | None) -> Replies:
        (outcome,) = self.ask_all((request,), until)
        if isinstance(outcome, ConnectionLost):
            raise outcome
        return outcome

    def _request_on(
        self, lease: Lease | None, request: Request, until: float | None
    ) -> tuple[Replies, Lease | None]:
        """Use the connection that was held, if one was; return it too if it is to be held on."""
        if lease is None and self._cluster is not None:
            return self._begin_to_hold(request, until)
        watches = lease is not None
        lease = lease or self._take(self._source(request.key))
        replies = self._exchange(lease, request.commands)
        if request.hold:
            return replies, lease
        self._end(lease, request.commands, replies, watches=watches)
        return replies, None

    def _begin_to_hold(self, request: Request, until: float | None) -> tuple[Replies, Lease | None]:
        """Send a first request under WATCH to the server that has the slot, when one has it."""
        rounds: Rounds | None = None
        while True:
            lease = self._take(self._source_of(request.key))
            replies = self._exchange(lease, request.commands)
            refused = find_redirects(request.commands, replies)
            if not refused:
                return replies, lease
            self._drop(lease)
            now = boot_clock()
            rounds = rounds or Rounds(now, until)
            pause = rounds.pause(now, redirected=self._note_moved(refused))
            if pause is None:
                rounds.explain(Sent(request.key, request.commands, replies), now)
                return replies, None
            if pause:
                time.sleep(pause)

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
        if answered:
            # What a server of a cluster refuses has to be sent to another one.
            self._follow(answered, until, waits=any(may_wait(request) for request in requests))
        return outcomes

    def _by_source(
        self, requests: Sequence[Request | Pipeline], outcomes: list[Any]
    ) -> list[tuple[Any, Sequence[int]]]:
        """Return the indices of the requests for each server; note those that have none."""
        if self._cluster is None:
            return [(self._source(""), range(len(requests)))]
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index, request in enumerate(requests):
            try:
                source = self._source_of(request.key, replica=request.replica)
            except ConnectionLost as lost:
                outcomes[index] = lost
            else:
                groups.setdefault(id(source), (source, []))[1].append(index)
        # In one order for all threads, which may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

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
        if mine[0].replica:
            # Its answer is none of those asked for.
            mine.insert(0, READONLY)
        sent: list[Command] | None = None if self._cluster is None else []
        replies: Replies = []
        lost: ConnectionLost | None = None
        try:
            lease = self._take(source)
            yield from self._exchange_many(lease, writes_of(mine, sent), replies)
        except ConnectionLost as one:
            lost = one
        each = outcomes_of(mine, replies, lost)
        if lost is None and leaves_transaction(mine, each):
            self._drop(lease)
        elif lost is None:
            self._give_back(lease)
        answered += starmap(Sent, answered_of(mine, each, sent or ()))
        for index, outcome in zip(indices, each[len(mine) - len(indices) :], strict=True):
            outcomes[index] = outcome

    def _follow(self, requests: Sequence[Sent], until: float | None, *, waits: bool) -> None:
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
                time.sleep(pause)
            for part in again:
                self._send_again(part)

    def _send_again(self, again: Again) -> None:
        commands = again.commands
        try:
            self._note_moved([redirect for _, redirect in again.parts])
            lease = self._take(self._redirected_source(again))
            answers = self._exchange(lease, commands)
        except ConnectionLost as lost:
            again.merge(lost.replies, lost)
        except (RedisError, OSError) as error:
            # What else serves it could not be found out; the others were answered.
            again.merge([], ConnectionLost(error, sent=False, replies=[]))
        else:
            self._end(lease, commands, answers)
            again.merge(answers)

    def _note_moved(self, redirects: Sequence[Redirect]) -> bool:
        """Note what has moved; return whether all has, so that no pause is needed."""
        moved = [each.error for each in redirects if isinstance(each.error, MovedError)]
        for error in moved:
            if error.host:
                redispy.note_moved(self._cluster, error)
            else:
                self._look_for_nodes()
        return len(moved) == len(redirects)

    def _source(self, key: str) -> Any:
        if self._cluster is None:
            return self.client.connection_pool
        return redispy.pool_of_key(self._cluster, key)

    def _source_of(self, key: str, *, replica: bool = False) -> Any:
        """Return what connections for a key come from; ConnectionLost where no server has it."""
        if self._cluster is None:
            return self._source(key)
        try:
            if replica:
                return redispy.pool_of_replica(self._cluster, key)
            return self._source(key)
        except (RedisError, RedisClusterException, OSError) as error:
            self._look_for_nodes()
            raise ConnectionLost(no_server(key, error), sent=False, replies=[]) from error

    def _redirected_source(self, again: Again) -> Any:
        if again.target is not None:
            _, host, port = again.target
            source = redispy.pool_of_address(self._cluster, host, port)
            if source is not None:
                return source
            self._look_for_nodes()
        return self._source_of(again.key)

    def _take(self, pool: Any) -> Lease:
        lease = self._take_idle(pool)
        if lease is not None:
            return lease
        try:
            return pool, pool.get_connection()
        except (RedisError, OSError) as error:
            self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from error
        except BaseException:
            # KeyboardInterrupt while it connects leaves redis-py a connection of no use.
            pool.disconnect(inuse_connections=False)
            raise

    def _take_idle(self, pool: Any) -> Lease | None:
        try:
            lease, used = self._idle.pop()
        except IndexError:
            return None
        kept_pool, connection = lease
        if not redispy.may_be_kept(connection):
            kept_pool.release(connection)
            return None
        try:
            # Readable means closed by the server, or that there are replies without a request.
            fresh = time.monotonic() - used < FRESH_SECONDS
            usable = kept_pool is pool and (fresh or not redispy.is_readable(connection))
        except (RedisConnectionError, RedisTimeoutError, OSError):
            usable = False
        if usable:
            return lease
        self._drop(lease)
        return None

    def _look_for_nodes(self) -> None:
        """Ask a cluster anew who serves what, after one of its servers was not reachable."""
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                redispy.find_servers(self._cluster)

    def _end(
        self, lease: Lease, commands: Sequence[Command], replies: Replies, *, watches: bool = False
    ) -> None:
        """Give a connection back, or close it if MULTI or WATCH may be pending on it.

        Its next user would find its commands queued, or its EXEC refused.
        """
        if (watches or commands[-1] == EXEC) and not ends_transaction(commands, replies):
            self._drop(lease)
        else:
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        pool, connection = lease
        if self._keeps_idle and not self._idle:
            now = time.monotonic()
            if now < self._release_at and redispy.may_be_kept(connection):
                self._idle.append((lease, now))
                return
            self._release_at = now + KEPT_SECONDS
        pool.release(connection)

    @staticmethod
    def _drop(lease: Lease) -> None:
        """Give back a connection that is in the middle of something."""
        pool, connection = lease
        redispy.close_quietly(connection)
        pool.release(connection)

    def _exchange(
        self, lease: Lease, commands: Sequence[Command], room: memoryview | None = None
    ) -> Replies:
        connection = lease[1]
        replies: Replies = []
        # A command of which the socket did not take the last byte is carried out by no server.
        sent = len(commands) > 1
        try:
            if not sent and isinstance(commands[0], bytes):
                redispy.send(connection, commands[0])
                sent = True
                self._read(connection, 1, replies)
            else:
                redispy.send(connection, *join_commands(commands))
                if room is not None:
                    redispy.receive(connection, len(commands), room, replies)
                self._read(connection, len(commands), replies)
        except (RedisError, OSError) as error:
            self._drop(lease)
            # What is refused while a closed connection is opened again was not sent.
            sent = sent and not is_refusal(error)
            raise ConnectionLost(error, sent=sent, replies=replies) from error
        except BaseException:
            self._drop(lease)
            raise
        if self._asks_sentinel and any(isinstance(r, ReadOnlyError) for r in replies):
            # It was the master; opened again, the connection asks Sentinel for the master of now.
            redispy.close_quietly(connection)
        return replies

    def _exchange_many(
        self,
        lease: Lease,
        writes: Iterable[Write],
        replies: Replies,
    ) -> Generator[bool, None, None]:
        connection = lease[1]
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
            self._drop(lease)
            # What is refused while a closed connection is opened again was not sent.
            left = (before if is_refusal(error) else written) > 0
            raise ConnectionLost(error, sent=left, replies=replies, written=written) from error
        except BaseException:
            self._drop(lease)
            raise
        if self._asks_sentinel and any(isinstance(r, ReadOnlyError) for r in replies):
            # It was the master; opened again, the connection asks Sentinel for the master of now.
            redispy.close_quietly(connection)

    def _read(self, connection: Any, count: int, replies: Replies) -> None:
        """Read until there are `count` replies."""
        while len(replies) < count:
            try:
                reply = self._read_reply(connection)
            except (RedisError, OSError) as error:
                if not is_refusal(error):
                    raise
                if ends_connection(error):
                    redispy.close_quietly(connection)
                    replies += [error] * (count - len(replies))
                    return
                reply = error
            replies.append(reply)


class _Scope:
    """What one run of a core has open: a subscription and context managers."""

    def __init__(self, runtime: Threads) -> None:
        self._runtime = runtime
        self._subscription: Listener | None = None
        self._entered: list[Any] = []

    def carry_out(self, step: Effect) -> Any:
        """Carry out a step that needs no connection of its own; return its answer."""
        return _EFFECTS[type(step)](self, step)

    def pause(self, step: Pause) -> None:
        time.sleep(step.seconds)

    def clock(self, _: Clock) -> Callable[[], float]:
        return boot_clock

    def behind(self, step: Behind) -> None:
        self._runtime.run_behind(step)

    def parallel(self, step: Parallel) -> list[Outcome]:
        return self._runtime.ask_all(step.requests)

    def fan_out(self, step: FanOut) -> list[Any]:
        return self._runtime.fan_out(step)

    def free_memory(self, step: FreeMemory) -> int | None:
        return free_memory(self._runtime.settings_of(step.key))

    def elsewhere(self, step: Elsewhere) -> tuple[Any, Exception | None]:
        try:
            return step.run(step.core), None
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return None, error

    def is_cluster(self, _: IsCluster) -> bool:
        return self._runtime.is_cluster

    def subscribe(self, step: Subscribe) -> bytes:
        self._subscription = self._subscription or self._runtime.subscribe(step)
        return self._subscription.channel if self._subscription else b""

    def next_message(self, step: NextMessage) -> bytes | None:
        if self._subscription is None:
            return None
        return self._subscription.wait(step.addressee, step.seconds)

    def enter(self, step: EnterContext) -> Exception | None:
        if not hasattr(type(step.manager), "__enter__"):
            return not_a_manager(step.manager, "a context manager")
        try:
            step.manager.__enter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(step.manager)
        return None

    def leave(self, _: ExitContext) -> Exception | None:
        try:
            self._entered.pop().__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        return None

    def close(self) -> None:
        """Leave what the core did not, and stop listening."""
        try:
            while self._entered:
                self._entered.pop().__exit__(*sys.exc_info())
        finally:
            if self._subscription is not None:
                self._runtime.unsubscribe(self._subscription)


_EFFECTS: dict[type, Callable[[_Scope, Any], Any]] = {
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


def _release_all(idle: list[tuple[Lease, float]]) -> None:
    # Another thread may take the last one in between.
    with contextlib.suppress(IndexError):
        while True:
            (pool, connection), _ = idle.pop()
            pool.release(connection)
