# Written by tools/async_to_sync.py from bloomlock/runtime/_async/driver.py; change that.
"""Carries out the steps of cores that are more than one request to one server."""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redis.exceptions import RedisError

from bloomlock.clock import boot_clock, sleep
from bloomlock.commands import EXEC, MULTI, UNWATCH, leaves_transaction, outcomes_of, writes_of
from bloomlock.effects import (
    NO_LIMIT,
    Asking,
    Call,
    ConnectionLost,
    FanOut,
    Limit,
    NextMessage,
    Parallel,
    Pause,
    Pipeline,
    Request,
    RunAfter,
    RunOn,
    Subscribe,
    Transaction,
)
from bloomlock.refusals import is_refusal
from bloomlock.runtime import cluster, connections, redispy
from bloomlock.runtime._sync.exchange import Exchange
from bloomlock.runtime.background import Background, out_of_time
from bloomlock.runtime.cluster import Pauses
from bloomlock.runtime.forks import OWNERS
from bloomlock.runtime.pubsub import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from bloomlock.commands import Write
    from bloomlock.effects import Outcome, Replies, Step
    from bloomlock.runtime.connections import Source, Taken

T = TypeVar("T")
logger = logging.getLogger("bloomlock.runtime")

SHARED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the id of its client each runtime that is in use."""


class Driver(Exchange):
    """Runs cores over a client; `members` are the runtimes of the servers of a FanOut."""

    def __init__(self, client: Any, members: Sequence[Self] = ()) -> None:
        super().__init__(client)
        self._members = members
        self._background = Background()
        self._listeners: list[Listener] = []
        # redis-py takes the lock of a pool before it notices that its process is a child of
        # fork, where a thread of the parent may have it for ever.
        if hasattr(pool := connections.own_pool(client), "_lock"):
            OWNERS[id(pool)] = pool

    @classmethod
    def of(cls, client: Any) -> Self:
        """Return the runtime of a client, the same for all filters and locks over it."""
        # A client's id is not given to another one while its runtime, which holds it, lives.
        shared = SHARED.get(id(client))
        if shared is None:
            shared = SHARED[id(client)] = cls(client)
        made: Self = shared
        return made

    @classmethod
    def over(cls, clients: Sequence[Any]) -> Self:
        return cls(clients[0], [cls.of(client) for client in clients])

    def close(self) -> None:
        for member in self._members:
            member.close()
        self.release_idle()
        while self._listeners:
            self._listeners.pop().close()

    is_async = False

    def _subscribe(self, step: Subscribe) -> Listener | None:
        return listen(self._listeners, self.source_of(step.key), step)

    @property
    def members(self) -> Sequence[Self]:
        return self._members or (self,)

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:
        if len(self.members) > 1:
            return [[item] for item in items]
        if self._cluster is None:
            return [items]
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(cluster.slot_of(key_of(item)), []).append(item)
        return list(groups.values())

    def _carry_out(  # noqa: C901, PLR0911 - one for each step
        self, step: Step, limit: Limit, subscriptions: list[Any]
    ) -> Any:
        if isinstance(step, Asking):
            return self._within(limit, step)
        match step:
            case Pause():
                return sleep(step.seconds)
            case Subscribe():
                if not subscriptions and (made := self._subscribe(step)) is not None:
                    subscriptions.append(made)
                return subscriptions[0].channel if subscriptions else b""
            case NextMessage():
                if not subscriptions:
                    return None
                return subscriptions[0].wait(step.addressee, step.seconds)
            case FanOut():
                runs = [member.run for member in self.members]
                calls = [partial(run, core) for run, core in zip(runs, step.cores, strict=True)]
                return self._background.fan_out(calls, step)
            case RunAfter():
                until = boot_clock() + step.seconds
                answer = self._call_in_queue(step.queue, partial(self.run, step.core), until)
                if isinstance(answer, Exception):
                    text = "failed to release a lock or claim; it expires by itself"
                    logger.error(text, exc_info=answer)
                return None
            case Call():
                return step.function(*step.args)
            case RunOn():
                return step.run(step.core)

    def _within(self, limit: Limit, step: Asking) -> Any:
        if limit.until is None:
            return self._ask(step, limit)
        if limit.until <= boot_clock():
            raise out_of_time(sent=False)
        call = partial(self._ask, step, limit)
        answer = self._call_in_queue(limit.queue, call, limit.until)
        if answer is None:
            raise out_of_time(sent=True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _call_in_queue(self, queue: list[Any], call: Callable[[], Any], until: float) -> Any:
        """Return the answer of a call or its exception; None if it goes on after some time."""
        alone = FanOut((), [queue], until, lambda _: False, None)
        (answer,) = self._background.fan_out([call], alone)
        return answer

    def _ask(self, step: Asking, limit: Limit) -> Any:
        if isinstance(step, Request):
            return self._request(step, limit)
        if isinstance(step, Transaction):
            return self._transact(step, limit)
        if isinstance(step, Parallel):
            return self.ask_all(step.requests, limit)
        (outcome,) = self.ask_all((step,), limit)
        if isinstance(outcome, ConnectionLost):
            raise outcome
        return outcome

    def _transact(self, step: Transaction, limit: Limit) -> tuple[Any, Replies | None]:
        pauses = Pauses(limit.until, waits=limit.waits)
        while True:
            taken = self._take(self.source_of(step.key))
            replies = self._exchange(taken, step.looks)
            refusal = self._refusal_of(replies)
            if refusal is None:
                try:
                    result, commands = step.decide(replies)
                except BaseException:
                    self._drop(taken)
                    raise
                if not commands:
                    self._end(taken, (UNWATCH,), self._exchange(taken, (UNWATCH,)))
                    return result, None
                commands = (MULTI, *commands, EXEC)
                replies = self._exchange(taken, commands)
                self._end(taken, commands, replies)
                refusal = self._refusal_of(replies)
                if refusal is None:
                    return result, replies
            else:
                self._drop(taken)
            # A slot that moves from under a WATCH ends it, so all begins again, at another server.
            self._note_moved(refusal)
            pause = pauses.next_s(refusal)
            if pause is None:
                raise pauses.explain(step.key, refusal) if limit.waits else refusal
            sleep(pause)

    def _refusal_of(self, replies: Replies) -> Exception | None:
        return None if self._cluster is None else cluster.refusal_of(replies)

    def ask_all(
        self, requests: Sequence[Request | Pipeline], limit: Limit = NO_LIMIT
    ) -> list[Outcome]:
        outcomes: list[Any] = [None] * len(requests)
        turns = [
            self._ask_server(source, requests, indices, outcomes)
            for source, indices in self._by_source(requests, outcomes)
        ]
        self._take_turns(turns)
        if self._cluster is not None:
            for request, outcome in zip(requests, outcomes, strict=True):
                if not isinstance(outcome, ConnectionLost):
                    self._follow(request, outcome, limit)
        return outcomes

    def _by_source(
        self, requests: Sequence[Request | Pipeline], outcomes: list[Any]
    ) -> list[tuple[Source, Sequence[int]]]:
        """Return the indices of the requests for each server; note those that have none."""
        if self._cluster is None:
            return [(self.source_of(""), range(len(requests)))]
        groups: dict[int, tuple[Source, list[int]]] = {}
        for index, request in enumerate(requests):
            try:
                source = self.source_of(request.key)
            except ConnectionLost as lost:
                outcomes[index] = lost
            else:
                groups.setdefault(id(source), (source, []))[1].append(index)
        # In one order for all, who may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

    def _ask_server(
        self,
        source: Source,
        requests: Sequence[Request | Pipeline],
        indices: Sequence[int],
        outcomes: list[Any],
    ) -> Generator[bool, None]:
        """Carry out requests to one server; yield True after each write, then False once."""
        mine = [requests[index] for index in indices]
        replies: Replies = []
        lost: ConnectionLost | None = None
        try:
            taken = self._take(source)
            yield from self._exchange_many(taken, writes_of(mine), replies)
        except ConnectionLost as one:
            lost = one
        each = outcomes_of(mine, replies, lost)
        if lost is None and leaves_transaction(mine, each):
            self._drop(taken)
        elif lost is None:
            self._give_back(taken)
        for index, outcome in zip(indices, each, strict=True):
            outcomes[index] = outcome

    def _exchange_many(
        self, taken: Taken, writes: Iterable[Write], replies: Replies
    ) -> Generator[bool, None]:
        connection = taken.connection
        written = before = 0
        try:
            for answered, count, data in writes:
                self._read(taken, answered, replies)
                before, written = written, count
                redispy.send(connection, *data)
                yield True
            yield False
            self._read(taken, written, replies)
            self._look_at_role(taken, replies)
        except (RedisError, OSError) as error:
            self._drop(taken)
            left = (before if is_refusal(error) else written) > 0
            raise ConnectionLost(error, sent=left, replies=replies, written=written) from None
        except BaseException as error:
            self._abandon(taken, error, written, replies)
            raise

    def _take_turns(self, turns: Sequence[Generator[bool, None]]) -> None:
        try:
            # Every server has its next write before any reply is waited for longer than that.
            writing = list(turns)
            while writing:
                writing = [turn for turn in writing if next(turn, False)]
            for turn in turns:
                next(turn, None)
        finally:
            for turn in turns:
                turn.close()
