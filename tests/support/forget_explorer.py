"""Walks the ways in which the commands of a few clients mix that add, ask for and forget an item.

The cores are those of the library, and the server is real. Each command of a request is a step of
its own, as the server may carry out commands of others in between (a transaction is one step). A
client may crash before any step, and a step may be lost: it or its reply, and with it the rest of
the request.

A history is right if its operations can be put in an order in which a set gives the same answers,
and in which no operation comes before another that had ended when it began (Herlihy, Wing 1990:
linearizability). What a crashed client had under way, and what has an unknown outcome, may have
happened at any time after it began, or not at all. (Wing and Gong's search decides it.)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import redis

from bloomlock import BloomFilter, OutcomeUnknownError
from bloomlock.commands import EXEC, MULTI
from bloomlock.delivery import ask
from bloomlock.descriptor import slices_of
from bloomlock.effects import ConnectionLost, Parallel, Pause, Pipeline
from bloomlock.filters import answers, discards, growing
from bloomlock.filters.state import Unreported
from bloomlock.keys import FilterKeys, forgotten_key
from bloomlock.strategies.base import header_command, header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Contents = tuple[list[bytes], list[dict[bytes, bytes]]]

State = TypeVar("State")

ITEM, OTHER, NEVER = "item", "other", "never"
MOST_SLICES = 3


def grow(state: Any) -> Any:
    """Add a slice to each shard that has not grown as far as it knows, as a full one would get."""
    view = state.view
    for shard in view.shards:
        (start,) = yield from ask(shard.key, header_command(shard.key))
        header = header_from_bytes(start)
        if slices_of(header) < MOST_SLICES:
            yield from growing._add_slice(view, growing._Looked(shard, header, 0, 0))
    return True


CORES: dict[str, Callable[..., Any]] = {
    "add": lambda state: answers.add(state, ITEM),
    "add_many": lambda state: answers.add_many(state, [ITEM, OTHER], "items"),
    "exists": lambda state: answers.exists(state, ITEM),
    "discard": lambda state: discards.discard(state, ITEM),
    "grow": grow,
}
STARTS = ("absent", "there", "forgotten", "again")
"""What was done with the item before: nothing; add; add and discard; and add once more."""

FAULTS = ("crash", "lost before", "lost after")
TURN = -1
"""In place of the number of a client: the next slice of a window begins."""


class Way(NamedTuple):
    """How a walk begins.

    Attributes:
        start: What was done with the item before.
        heard: Which clients have heard of forgotten items.
    """

    start: str
    heard: Sequence[bool]


class Done(NamedTuple):
    """An operation of a history.

    Attributes:
        start: When it began.
        end: When it ended; infinite: its outcome is not known.
        kind: What it is.
        answer: What it answered; None: not known.
    """

    start: float
    end: float
    kind: str
    answer: bool | None


def is_linearizable(
    history: Sequence[Done], first: State, after: Callable[[Done, State], list[State]]
) -> bool:
    """Return whether an object may have given the answers of a history.

    Args:
        history: What was done.
        first: The state of the object at first.
        after: Returns the states that an operation may leave if it gave its answer in a state.
    """
    seen = set()

    def search(left: frozenset[int], state: State) -> bool:
        if all(math.isinf(history[index].end) for index in left):
            return True
        if (left, state) in seen:
            return False
        seen.add((left, state))
        first_end = min(history[index].end for index in left)
        return any(
            search(left - {index}, then)
            for index in left
            if history[index].start <= first_end
            for then in after(history[index], state)
        )

    return search(frozenset(range(len(history))), first)


def after_in_a_set(one: Done, there: bool) -> list[bool]:
    """Return whether a set may have the item after an operation."""
    if one.kind == "grow":
        return [there]
    if one.kind == "exists":
        return [there] if one.answer in (None, there) else []
    if one.kind == "discard":
        return [False] if one.answer in (None, there) else []
    return [True] if one.answer in (None, not there) else []


class Choices:
    """Gives the choices of one walk after the other, until all were taken."""

    def __init__(self) -> None:
        self.path: list[list[int]] = []
        self._at = 0

    def begin(self) -> None:
        self._at = 0

    def choose(self, count: int) -> int:
        if self._at == len(self.path):
            self.path.append([0, count])
        number, known = self.path[self._at]
        assert known == count, "the walk is not the same as before"
        self._at += 1
        return number

    def advance(self) -> bool:
        """Go on to the next walk; False: there is none."""
        while self.path:
            self.path[-1][0] += 1
            if self.path[-1][0] < self.path[-1][1]:
                return True
            self.path.pop()
        return False


class Client:
    """One client: its operations one after the other, command by command."""

    def __init__(self, world: World, state: Any, program: Sequence[str]) -> None:
        self._world = world
        self._state = state
        self._program = iter(program)
        self.has_crashed = False
        self._core: Any = None
        self._begin()

    @property
    def is_over(self) -> bool:
        return self.has_crashed or self._core is None

    def _begin(self) -> None:
        self._kind = next(self._program, "")
        if not self._kind:
            self._core = None
            return
        self._start = self._world.tick()
        self._core = CORES[self._kind](self._state)
        self._resume(None)

    def _resume(self, answer: Any) -> None:
        """Give the core an answer, and take the steps that it wants carried out next."""
        try:
            if isinstance(answer, ConnectionLost):
                step = self._core.throw(answer)
            else:
                step = self._core.send(answer)
            while isinstance(step, Pause):
                step = self._core.send(None)
        except StopIteration as stop:
            value = stop.value[0] if isinstance(stop.value, list) else stop.value
            self._end(value)
            return
        except OutcomeUnknownError:
            self._end(None)
            return
        self._is_parallel = isinstance(step, Parallel)
        self._requests = list(step.requests) if self._is_parallel else [step]
        self._steps = [(n, unit) for n, one in enumerate(self._requests) for unit in units_of(one)]
        self._replies: list[list[Any]] = [[] for _ in self._requests]

    def _end(self, value: bool | None) -> None:
        end = math.inf if value is None else self._world.tick()
        self._world.history.append(Done(self._start, end, self._kind, value))
        self._begin()

    def go_on(self, fault: str = "") -> None:
        """Carry out the next step, or let a fault happen there."""
        if fault == "crash":
            self.has_crashed = True
            self._world.history.append(Done(self._start, math.inf, self._kind, None))
            return
        number, unit = self._steps.pop(0)
        if fault != "lost before":
            replies = self._world.carry_out(unit)
        if fault:
            self._lose(number)
            return
        self._replies[number] += replies
        if not self._steps:
            self._resume(self._replies if self._is_parallel else self._replies[0])

    def _lose(self, number: int) -> None:
        cause = redis.ConnectionError("lost by the explorer")
        lost = ConnectionLost(cause, sent=True, replies=self._replies[number])
        if not self._is_parallel:
            self._resume(lost)
            return
        unsent = [ConnectionLost(cause, sent=False, replies=[]) for _ in self._requests]
        outcomes = [*self._replies[:number], lost, *unsent[number + 1 :]]
        self._resume(outcomes)


def units_of(request: Any) -> Iterator[list[bytes]]:
    """Yield the commands of a request; those of a transaction together."""
    if isinstance(request, Pipeline):
        commands = [command for write in request.writes for command in write]
    else:
        commands = list(request.commands)
    while commands:
        end = commands.index(EXEC) + 1 if commands[0] == MULTI else 1
        yield commands[:end]
        commands = commands[end:]


class World:
    """A filter on a server, and the clients of one walk.

    Args:
        client: Of an empty server.
        strategy: That of all clients.
        shards: Of the filter.
        grows: Whether it grows. What was done before was done in its first slice, but that it was
            forgotten, and there are two.
    """

    def __init__(
        self, client: redis.Redis, strategy: str, shards: int, *, grows: bool = False
    ) -> None:
        self._client = client
        self._connection = client.connection_pool.get_connection()
        on_full = "grow" if grows else "warn"
        made = BloomFilter(
            "x", 50, 1e-9, client=client, shards=shards, strategy=strategy, on_full=on_full
        )
        made.add(OTHER)
        self._open_all(client, shards, strategy=strategy)
        self._contents = {}
        for start, method in zip(STARTS, ("", "add", "discard", "add"), strict=True):
            if method:
                assert getattr(made, method)(ITEM)
            if grows and start == "there":
                made._run(grow(made._state))
            self._contents[start] = self._snapshot()
        self._version = self._version_in(self._contents["forgotten"])

    def _open_all(self, client: redis.Redis, shards: int, **options: Any) -> None:
        """Open the objects of the clients."""
        placed = FilterKeys("x").spread(shards)
        self._bits = [placed.bits(number) for number in range(shards)]
        self._tables = [forgotten_key(key) for key in self._bits]
        self._objects = [BloomFilter.open("x", client=client, **options) for _ in range(3)]
        self._plain = [one._state.view for one in self._objects]
        self._identity = self._plain[0].hasher.identify(ITEM.encode())
        self.history: list[Done] = []
        self._ticks = itertools.count()

    def _snapshot(self) -> Contents:
        strings = [self._client.get(key) for key in self._bits]
        return strings, [self._client.hgetall(key) for key in self._tables]

    def _restore(self, contents: Contents) -> None:
        strings, tables = contents
        with self._client.pipeline(transaction=False) as pipe:
            pipe.delete(*self._tables)
            for key, value in zip(self._bits, strings, strict=True):
                pipe.set(key, value)
            for key, value in zip(self._tables, tables, strict=True):
                if value:
                    pipe.hset(key, mapping=value)
            pipe.execute()

    def _version_in(self, contents: Contents) -> bytes:
        """Return the version of the item, which was forgotten."""
        return next(filter(None, (table.get(self._identity) for table in contents[1])))

    def tick(self) -> int:
        return next(self._ticks)

    def carry_out(self, commands: Sequence[bytes]) -> list[Any]:
        self._connection.send_packed_command(list(commands))
        replies = []
        for _ in commands:
            try:
                replies.append(self._connection.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    def begin(self, way: Way) -> None:
        """Begin anew."""
        self.history = []
        self._restore(self._contents[way.start])
        self._begin_objects(way.heard, self._version)
        for one, has_heard in zip(self._objects, way.heard, strict=False):
            for shard in one._state.view.shards:
                if shard.chain is not None:
                    shard.chain.count, shard.chain.forgets = 1, has_heard

    def _begin_objects(self, heard: Sequence[bool], version: bytes) -> None:
        """Let the objects know nothing but, where they have heard, that items are forgotten."""
        for one, plain, has_heard in zip(self._objects, self._plain, heard, strict=False):
            state = one._state
            state.unreported = Unreported()
            view = replace(plain, unreported=state.unreported.of(plain.header))
            if has_heard:
                view = view.with_forgotten()
                # What it knows may be of long ago.
                view.forgotten.learn(self._identity, version)
            state.view, state.lost = view, None
            # No looks at the fill, which come after so many adds, and after a while.
            state.fill._until_look = 10**9
            state.fill._stale_at = math.inf
            if state.fill._clock is not None:
                state.fill._clock = lambda: 0.0

    def turn(self) -> None:
        """Let the next slice of the window begin."""
        raise NotImplementedError("no window")

    def open(self) -> BloomFilter:
        """Return an object that has not heard of anything."""
        return BloomFilter.open("x", client=self._client)

    def is_right(self, way: Way) -> bool:
        """Return whether the history is right."""
        return is_linearizable(self.history, way.start in ("there", "again"), after_in_a_set)

    def walk(
        self,
        way: Way,
        programs: Sequence[Sequence[str]],
        choose: Callable[[int], int],
        faults: int = 0,
        turns: int = 0,
    ) -> None:
        """Walk once.

        Raises:
            AssertionError: If the history is wrong, or another item was touched.
        """
        self.begin(way)
        clients = [
            Client(self, one._state, program)
            for one, program in zip(self._objects, programs, strict=False)
        ]
        done = []
        while going := [n for n, client in enumerate(clients) if not client.is_over]:
            ways = [(number, "") for number in going] + [(TURN, "")] * bool(turns)
            if faults:
                ways += [(number, fault) for number in going for fault in FAULTS]
            number, fault = ways[choose(len(ways))]
            done.append(f"{number} {fault}".strip())
            if number == TURN:
                turns -= 1
                self.turn()
                continue
            faults -= bool(fault)
            clients[number].go_on(fault)
        fresh = self.open()
        for kind in ("exists", "add", "add", "exists"):
            begun = self.tick()
            answer = getattr(fresh, kind)(ITEM)
            self.history.append(Done(begun, self.tick(), kind, answer))
        shown = f"{way}, {programs}, steps {done}: {self.history}"
        assert self.is_right(way), shown
        assert fresh.exists(OTHER), f"another item is lost: {shown}"
        assert not fresh.exists(NEVER), shown

    def close(self) -> None:
        self._client.connection_pool.release(self._connection)


def walk_all(
    world: World, way: Way, programs: Sequence[Sequence[str]], faults: int = 0, turns: int = 0
) -> int:
    """Walk all ways; return how many there are."""
    choices, walks = Choices(), 0
    while True:
        choices.begin()
        world.walk(way, programs, choices.choose, faults, turns)
        walks += 1
        if not choices.advance():
            return walks
