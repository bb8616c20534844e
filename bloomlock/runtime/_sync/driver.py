# Written by tools/async_to_sync.py from bloomlock/runtime/_async/driver.py; change that.
"""Drives the cores over a redis-py client; what only threads or only asyncio need stands above.

Commands are sent as bytes over the client's own connections: redis-py's `execute_command` would
retry an update by itself, which loses items (the second try finds what the first one added).
"""

from __future__ import annotations

import contextlib
import time
import weakref
from abc import ABC, abstractmethod
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from bloomlock.commands import EXEC, MULTI, UNWATCH, encode_command, ends_transaction, join_commands
from bloomlock.effects import (
    NO_LIMIT,
    Asking,
    ConnectionLost,
    FanOut,
    Limit,
    Parallel,
    Pipeline,
    Request,
    Subscribe,
    Transaction,
    shorten_traceback,
)
from bloomlock.errors import BloomlockError, FilterNotFoundError
from bloomlock.parallel import leaves_transaction, outcomes_of, writes_of
from bloomlock.refusals import ends_connection, explain, is_missing, is_refusal
from bloomlock.runtime import cluster, connections, redispy
from bloomlock.runtime._sync.kept import Kept
from bloomlock.runtime._sync.scopes import Scope
from bloomlock.runtime.background import out_of_time
from bloomlock.runtime.clock import boot_clock, sleep
from bloomlock.runtime.cluster import Again, Pauses, Sent
from bloomlock.runtime.connections import Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from bloomlock.commands import Command, Replies
    from bloomlock.effects import Core, Outcome
    from bloomlock.parallel import Write
    from bloomlock.runtime.connections import Source

T = TypeVar("T")

ROLE_SECONDS = 1.0
"""How often a connection in use asks its server whether it still is the master."""
_LOOK_AT = "bloomlock_look_at"
_HELLO = encode_command("HELLO")


SHARED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the id of its client each runtime that is in use."""


class Driver(ABC):
    """Runs cores over a client.

    Args:
        client: The client.
        members: The runtime of each server that a FanOut goes to; empty: itself.
    """

    _background: Any

    def __init__(self, client: Any, members: Sequence[Self] = ()) -> None:
        self.client = client
        self._cluster: Any = client if isinstance(client, cluster.CLUSTERS) else None
        self._members = members
        self.is_cluster = self._cluster is not None
        pool = connections.own_pool(client)
        self._kept = Kept(pool)
        self._read_reply = redispy.reply_reader(pool)
        # A cluster's replicas answer MOVED.
        self._asks_role = self._cluster is None
        self._was_master = False

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

    @abstractmethod
    def subscribe(self, step: Subscribe) -> Any: ...

    @abstractmethod
    def unsubscribe(self, subscription: Any, /) -> None: ...

    @abstractmethod
    def _take_turns(self, turns: Sequence[Generator[bool, None]]) -> None: ...

    @abstractmethod
    def _abandon(
        self, taken: Taken, error: BaseException, count: int, replies: Replies
    ) -> None: ...

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

    def run(self, core: Core[T]) -> T:  # noqa: C901, PLR0912 - one loop
        scope: Scope | None = None
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
                    elif isinstance(step, Asking):
                        answer = self._within(limit, step)
                    else:
                        scope = scope or Scope(self)
                        answer = scope.carry_out(step)
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
            if scope is not None:
                scope.close()

    def _explain(self, error: Exception, key: str) -> None:
        """Let an error say to a user what the cores do not know: where, and what to do."""
        shorten_traceback(error)
        if isinstance(error, FilterNotFoundError):
            error.args = (f"{error} at {connections.place_of(self.client)}",)
        elif is_refusal(error) and (text := explain(error, key)) != str(error):
            error.args = (f"the server refuses: {text}",)

    def _within(self, limit: Limit, step: Asking) -> Any:
        if limit.until is None:
            return self._ask(step, limit)
        if limit.until <= boot_clock():
            raise out_of_time(sent=False)
        call = partial(self._ask, step, limit)
        answer = self.call_in_line(limit.line, call, limit.until)
        if answer is None:
            raise out_of_time(sent=True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call_in_line(self, line: list[Any], call: Callable[[], Any], until: float) -> Any:
        """Return the answer of a call or its exception; None if it goes on after some time."""
        alone = FanOut((), [line], until, lambda _: False, None)
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

    def _request(self, request: Request, limit: Limit = NO_LIMIT) -> Replies:
        taken = self._take(self.source_of(request.key))
        replies = self._exchange(taken, request.commands, request.room)
        self._end(taken, request.commands, replies)
        if self._cluster is not None:
            self._follow(request, replies, limit)
        return replies

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
            pause = pauses.next_s(refusal, is_redirection=not cluster.is_ask(refusal))
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
        try:
            connection = self._kept.take(source)
            if connection is None:
                connection = connections.get_connection(source)
        except (RedisError, OSError) as error:
            self._look_for_nodes()
            raise ConnectionLost(error, sent=False, replies=[]) from None
        now = time.monotonic()
        if not self._asks_role or now < getattr(connection, _LOOK_AT, 0.0):
            return Taken(source, connection)
        taken = Taken(source, connection, [])
        try:
            setattr(connection, _LOOK_AT, now + ROLE_SECONDS)
            # The answer is read with those of the request, so this costs no round trip.
            redispy.send(connection, _HELLO)
        except BaseException as error:
            redispy.close_quietly(connection)
            connections.release(source, connection)
            if isinstance(error, (RedisError, OSError)):
                raise ConnectionLost(error, sent=False, replies=[]) from None
            raise
        return taken

    def _give_back(self, taken: Taken) -> None:
        if not self._kept.keep(taken):
            connections.release(taken.source, taken.connection)

    def _drop(self, taken: Taken) -> None:
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

    def _follow(self, request: Request | Pipeline, replies: Replies, limit: Limit) -> None:
        if cluster.refusal_of(replies) is not None:
            # Those of a pipeline are made once more.
            sent = Sent(request.key, [*chain.from_iterable(request.writes())], replies)
            waits = request.waits and limit.waits
            self.run(cluster.follow(sent, limit.until, waits=waits))

    def send_again(self, again: Again) -> Outcome:
        refusal = again.refusal
        try:
            self._note_moved(refusal)
            source = None
            if isinstance(refusal, AskError):
                address = refusal.host, refusal.port
                source = cluster.source_of_address(self._cluster, *address)
                if source is None:
                    self._look_for_nodes()
            taken = self._take(source or self.source_of(again.key))
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
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                self._cluster.nodes_manager.initialize()

    def _look_at_role(self, taken: Taken, replies: Replies) -> None:
        """Leave a server that was the master and is a replica now.

        An add is refused there. A read would be answered without what was added since, so it
        counts as refused. A client whose server never was the master is meant to ask a replica.
        """
        is_left = ReadOnlyError in map(type, replies)
        if taken.role and not is_left:
            is_replica = redispy.says_replica(taken.role[0])
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
