# Written by tools/async_to_sync.py from bloomlock/runtime/_async/sending.py; change that.
"""Requests to the servers behind a client, and again what a cluster refuses; see cluster.py."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
)

from bloomlock.commands import EXEC, ends_transaction
from bloomlock.effects import (
    Call,
    Clock,
    ConnectionLost,
    Elsewhere,
    FreeMemory,
    IsCluster,
    Parallel,
    Pause,
    Pipeline,
)
from bloomlock.refusals import ends_connection, is_refusal
from bloomlock.runtime import cluster, pools, redispy
from bloomlock.runtime.clients import free_memory
from bloomlock.runtime.clock import boot_clock, sleep
from bloomlock.runtime.cluster import Again, ClientServers, Pauses, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.commands import Command, Replies
    from bloomlock.effects import Outcome, Request
    from bloomlock.runtime.connections import Taken


class Sending(ClientServers, ABC):
    """Sends requests to the servers behind a client."""

    @abstractmethod
    def _source(self, key: str) -> Any:
        """Return what connections come from: the pool, or the node of a cluster that has a key."""

    @abstractmethod
    def _take(self, source: Any, /) -> Taken:
        """Take a connection from a source."""

    @abstractmethod
    def _give_back(self, taken: Taken) -> None:
        """Let the next request have a connection."""

    @abstractmethod
    def _drop(self, taken: Taken) -> None:
        """Close a connection that is in the middle of something, and give it back."""

    @abstractmethod
    def _exchange(
        self, taken: Taken, commands: Sequence[Command], room: memoryview | None = None
    ) -> Replies:
        """Send commands in one write and return their replies."""

    @abstractmethod
    def ask_all(
        self, requests: Sequence[Request | Pipeline], until: float | None = None
    ) -> list[Outcome]:
        """Send requests to all their servers at once; return what came of each."""

    def _end(
        self,
        taken: Taken,
        commands: Sequence[Command],
        replies: Replies,
        *,
        watches: bool = False,
    ) -> None:
        """Give a connection back, or close it if MULTI or WATCH may be pending on it.

        Its next user would find its commands queued, or its EXEC refused.
        """
        if (watches or commands[-1] == EXEC) and not ends_transaction(commands, replies):
            self._drop(taken)
        else:
            self._give_back(taken)

    def _source_of(self, key: str) -> Any:
        """Return what connections for a key come from; ConnectionLost where no server has it."""
        if self._cluster is None:
            return self._source(key)
        try:
            return self._source(key)
        except (RedisError, RedisClusterException, OSError) as error:
            self._look_for_nodes()
            raise ConnectionLost(cluster.no_server(key, error), sent=False, replies=[]) from None

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
        # In one order for all, who may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

    def _carry_out(
        self, step: Request | Pipeline, taken: Taken | None, until: float | None
    ) -> tuple[Replies, Taken | None]:
        """Carry out what a server is asked; return a connection too that is to be held on."""
        if isinstance(step, Pipeline):
            (outcome,) = self.ask_all((step,), until)
            if isinstance(outcome, ConnectionLost):
                raise outcome
            return outcome, taken
        if taken is not None or step.hold:
            return self._request_on(taken, step, until)
        return self._request(step, until), None

    def _request(self, request: Request, until: float | None = None) -> Replies:
        taken = self._take(self._source_of(request.key))
        replies = self._exchange(taken, request.commands, request.room)
        self._end(taken, request.commands, replies)
        if self._cluster is not None:
            sent = Sent(request.key, request.commands, replies)
            self._follow(sent, until, waits=request.waits)
        return replies

    def _request_on(
        self, taken: Taken | None, request: Request, until: float | None
    ) -> tuple[Replies, Taken | None]:
        """Use the connection that was held, if one was; return it too if it is to be held on.

        In a cluster a first request under WATCH goes to the server that has the slot, when one has
        it. A slot that moves from under a WATCH ends it: the step begins anew at another server.
        """
        watches = taken is not None
        pauses = None if watches or self._cluster is None else Pauses(until, waits=request.waits)
        while True:
            taken = taken or self._take(self._source_of(request.key))
            replies = self._exchange(taken, request.commands)
            refusal = None if self._cluster is None else _refusal_of(replies)
            if refusal is None:
                if request.hold:
                    return replies, taken
                self._end(taken, request.commands, replies, watches=watches)
                return replies, None
            self._drop(taken)
            taken = None
            self._note_moved(refusal)
            if pauses is None:
                return replies, None
            pause = pauses.next_s(refusal, is_redirection=not cluster.is_ask(refusal))
            if pause is None:
                error = pauses.explain(request.key, refusal) if request.waits else refusal
                return [error] * len(replies), None
            sleep(pause)

    def _follow(self, sent: Sent, until: float | None, *, waits: bool) -> None:
        """Send again what a cluster refused because a slot moves, until all is answered."""
        if _refusal_of(sent.replies) is None:
            return
        steps = cluster.follow(sent, until, waits=waits)
        answer: Any = None
        with contextlib.suppress(StopIteration):
            while True:
                step = steps.send(answer)
                if isinstance(step, Again):
                    answer = self._send_again(step)
                else:
                    sleep(step.seconds)
                    answer = None

    def _send_again(self, again: Again) -> Outcome:
        refusal = again.refusal
        try:
            self._note_moved(refusal)
            source = None
            if isinstance(refusal, AskError):
                address = refusal.host, refusal.port
                source = cluster.source_of_address(self._cluster, *address)
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
        if isinstance(refusal, MovedError) and refusal.host:
            cluster.note_moved(self._cluster, refusal)
        elif isinstance(refusal, (MovedError, ClusterDownError)):
            self._look_for_nodes()

    def _look_for_nodes(self) -> None:
        """Ask a cluster anew who serves what, after one of its servers was not reachable."""
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                cluster.find_servers(self._cluster)

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

    @staticmethod
    def _leave_replica(taken: Taken) -> None:
        """Close the connections to a server that was the master and is a replica now.

        Opened again they find the new master: by Sentinel, or behind the same address.
        """
        redispy.close_quietly(taken.connection)
        with contextlib.suppress(AttributeError, RedisError, OSError):
            taken.source.disconnect(inuse_connections=False)


def _refusal_of(replies: Replies) -> Exception | None:
    return next(filter(cluster.is_refused, replies), None)


def _pause(_: Sending, step: Pause) -> None:
    sleep(step.seconds)


def _clock(_: Sending, __: Clock) -> Callable[[], float]:
    return boot_clock


def _parallel(runtime: Sending, step: Parallel) -> list[Outcome]:
    return runtime.ask_all(step.requests)


def _free_memory(runtime: Sending, step: FreeMemory) -> int | None:
    return free_memory(pools.settings_of(runtime._source(step.key)))


def _elsewhere(_: Sending, step: Elsewhere) -> tuple[Any, Exception | None]:
    try:
        return step.run(step.core), None
    except Exception as error:  # noqa: BLE001 - the core's to judge
        return None, error


def _call(_: Sending, step: Call) -> object:
    return step.function(*step.args)


def _is_cluster(runtime: Sending, _: IsCluster) -> bool:
    return runtime.is_cluster


EFFECTS: dict[type, Callable[[Any, Any], Any]] = {
    Pause: _pause,
    Clock: _clock,
    Parallel: _parallel,
    FreeMemory: _free_memory,
    Elsewhere: _elsewhere,
    Call: _call,
    IsCluster: _is_cluster,
}
"""Steps that leave nothing open."""
