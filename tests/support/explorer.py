"""Explores what a protocol can get into: every state once, depth first, and the way to a wrong one.

`explore` walks worlds of any kind. `Cores` is a world of production cores on a real server: a move
carries out the next command of one client (all commands of a transaction), or loses it. What is
late is lost to its client, and carried out by a later move, or never.

A new protocol needs three things:

* programs: for each client a generator that yields an `Operation` (its core, as `core_of` takes it
  from a public method), gets its answer (None: the outcome is unknown), and ends;
* a function that brings the server and the objects to the start, and returns a `Cores` of them;
* a check of a `Cores`, from `judge_once`: that a history `is_linearizable`.

Further moves (a tick of the clock, a clear, an eviction) are given to `Cores` as `extra`: by name
how often each may happen, and what does it. They stand in the history as operations of their own.

A crash is no move: a client that is never chosen again has crashed, and the check looks at each
state, also at those in which the others have ended without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from unittest import mock

import redis

from bloomlock.commands import EXEC, MULTI, UNWATCH, Script
from bloomlock.effects import (
    ConnectionLost,
    Parallel,
    Pause,
    Pipeline,
    Request,
    Transaction,
)
from bloomlock.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence

W = TypeVar("W")
Contents = tuple[tuple[bytes, bytes], ...]
DONE, BEFORE, AFTER, LATE, CANCELLED = "done", "lost before", "lost after", "late", "cancelled"
EXTRA = -1
"""In place of the number of a client: a move that is none of a client's."""


class Explored(NamedTuple):
    """How many states, moves between them, and states without a further move."""

    states: int
    moves: int
    ends: int


def explore(
    start: Callable[[], W],
    moves: Callable[[W], Iterable[tuple[str, W]]],
    key: Callable[[W], Hashable],
    check: Callable[[W], object],
    check_circle: Callable[[W], object] = lambda _: None,
) -> Explored:
    """Visit every state of worlds that are values: each move gives another one.

    Args:
        start: Returns the first world.
        moves: Returns what may happen in a world, by name, and the world after it.
        key: Returns what tells worlds apart that go on differently.
        check: Raises AssertionError if a world is wrong. A move may raise it as well.
        check_circle: The same for a world to which a way leads back, perhaps for ever.
    """
    count = ends = 0
    seen: set[Hashable] = set()
    on_path: set[Hashable] = set()
    path: list[tuple[str, W, Hashable, Iterator[tuple[str, W]]]] = []

    def enter(name: str, world: W, found: Hashable) -> None:
        seen.add(found)
        on_path.add(found)
        path.append((name, world, found, iter(moves(world))))
        check(world)

    with _telling(lambda: [name for name, *_ in path], lambda: path[-1][1]):
        first = start()
        enter("start", first, key(first))
        fresh = True
        while path:
            move = next(path[-1][3], None)
            if move is None:
                ends += fresh
                on_path.remove(path.pop()[2])
                fresh = False
                continue
            count += 1
            name, world = move
            fresh = (found := key(world)) not in seen
            if fresh:
                enter(name, world, found)
            elif found in on_path:
                check_circle(world)
    return Explored(len(seen), count, ends)


class Move(NamedTuple):
    """What happens next: the step of which client, and what becomes of it; or an extra move."""

    client: int
    what: str


def explore_living(start: Callable[[], Cores], check: Callable[[Cores], object]) -> Explored:
    """Visit every state of worlds that cannot be copied: each is made anew by going its way."""
    seen: set[Hashable] = set()
    count = ends = 0
    path: list[tuple[list[Move], int]] = []
    world = start()
    with _telling(lambda: [options[number] for options, number in path], lambda: world):
        while True:
            for options, number in path:
                world.take(options[number])
            while (found := world.key()) not in seen:
                seen.add(found)
                check(world)
                options = world.moves()
                if not options:
                    ends += 1
                    break
                path.append((options, 0))
                count += 1
                world.take(options[0])
            while path and path[-1][1] + 1 == len(path[-1][0]):
                path.pop()
            world.close()
            if not path:
                return Explored(len(seen), count, ends)
            options, number = path.pop()
            path.append((options, number + 1))
            count += 1
            world = start()


def wander(start: Callable[[], Cores], check: Callable[[Cores], object], seed: object) -> None:
    """Go one way by chance, and check its end; a fault or an extra move is the seldom one."""
    chance, taken = random.Random(str(seed)), list[Move]()
    world = start()
    with _telling(lambda: [f"seed {seed}", *taken], lambda: world):
        while options := world.moves():
            usual = [one for one in options if one.what == DONE]
            taken.append(chance.choice(usual if usual and chance.random() < 0.85 else options))
            world.take(taken[-1])
        world.key()
        check(world)
        world.close()


@contextlib.contextmanager
def _telling(way: Callable[[], Iterable[object]], world: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"after: {'; '.join(map(str, way()))}\nin: {world()}")
        raise


# -- histories -----------------------------------------------------------------------------------


class Done(NamedTuple):
    """An operation of a history.

    Attributes:
        start: When its first command was sent.
        end: When it ended; infinite: it did not, or its outcome is not known.
        kind: What it is.
        answer: What it answered; None: not known.
        client: Whose it is.
        extras: How many extra moves there were before its first command.
    """

    start: float
    end: float
    kind: str
    answer: Any
    client: int = EXTRA
    extras: int = 0


def is_linearizable(
    history: Sequence[Done], first: Hashable, after: Callable[[Done, Any], Iterable[Hashable]]
) -> bool:
    """Return whether an object may have given the answers of a history (Wing and Gong's search).

    The operations must have an order in which the object gives the same answers, and in which none
    comes before another that had ended when it began. What has no known end may have happened at
    any time after it began, or not at all.

    Args:
        history: What was done.
        first: The state of the object at first.
        after: Returns the states that an operation may leave if it gave its answer in a state.
    """
    seen = set()

    def search(left: frozenset[int], state: Hashable) -> bool:
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


def in_rounds(history: Sequence[Done]) -> list[Done]:
    """Return a history whose times only say which operation ended before which other one began.

    So histories that differ in the order of two beginnings, or of two ends, are equal.
    """
    starts = {one.start for one in history}
    times = starts | {one.end for one in history if one.end < math.inf}
    number, has_ended, rounds = 0, False, {math.inf: math.inf}
    for time in sorted(times):
        number += has_ended and time in starts
        has_ended = time not in starts
        rounds[time] = number
    found = [one._replace(start=rounds[one.start], end=rounds[one.end]) for one in history]
    return sorted(found, key=lambda one: one.client)


def judge_once(
    hint: Callable[[Cores, list[Done]], Hashable],
    probe: Callable[[Any], Any],
    judge: Callable[[list[Done], Any, Any], object],
) -> Callable[[Cores], None]:
    """Return a check that judges each state with its history once.

    Args:
        hint: Returns what a probe has to know of the history.
        probe: Returns what others find who come after a state; it gets the hint. The server is put
            back then. A state in which this is known is not probed again.
        judge: Gets the history, the hint and what was found.
    """
    judged: set[Hashable] = set()
    probed: dict[Hashable, Any] = {}

    def check(world: Cores) -> None:
        history = world.operations()
        if (case := (world.shown, tuple(history))) in judged:
            return
        judged.add(case)
        known = hint(world, history)
        if (world.shown, known) not in probed:
            probed[world.shown, known] = probe(known)
            put_back(world.client, world.found)
        judge(history, known, probed[world.shown, known])

    return check


def followed_by(
    history: list[Done], answers: Iterable[tuple[str, Any]], client: int = EXTRA
) -> list[Done]:
    """Return a history and, one after the other, operations that came after it."""
    times = [time for one in history for time in one[:2] if time < math.inf]
    now = max(times, default=0)
    later = (
        Done(now + 2 * number + 1, now + 2 * number + 2, kind, answer, client)
        for number, (kind, answer) in enumerate(answers)
    )
    return [*history, *later]


# -- cores on a server ---------------------------------------------------------------------------


class Operation(NamedTuple):
    """One call of a client.

    Attributes:
        kind: What the history names it.
        core: What carries it out.
    """

    kind: str
    core: Generator[Any, Any, Any]


class _TakenError(Exception):
    """Carries a core out of the method that would run it."""


def core_of(made: Any, method: str, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
    """Return the core that a public method of an object would run."""

    def take(core: Any) -> Any:
        raise _TakenError(core)

    with mock.patch.object(made, "_run", take):
        try:
            getattr(made, method)(*args, **options)
        except _TakenError as taken:
            return taken.args[0]
    raise AssertionError(f"{method} asks no server")


def in_two_requests(core: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Carry out a core; of each Transaction the look and the rest are a step each."""
    try:
        step = next(core)
        while True:
            try:
                if isinstance(step, Transaction):
                    looked = yield Request(step.key, step.looks)
                    answer, commands = step.decide(looked)
                    ending = [MULTI, *commands, EXEC] if commands else [UNWATCH]
                    replies = yield Request(step.key, ending)
                    answer = answer, replies if commands else None
                else:
                    answer = yield step
            except BaseException as error:  # noqa: BLE001 - the core's to judge
                step = core.throw(error)
            else:
                step = core.send(answer)
    except StopIteration as stop:
        return stop.value
    finally:
        core.close()


class _Client:
    """A program on its way, command by command, on a connection of its own."""

    def __init__(self, world: Cores, number: int, program: Generator[Operation, Any, None]) -> None:
        self._world, self._number, self._program = world, number, program
        self._connection = world.pool.get_connection()
        self.replies: list[str] = []
        self._draws = 0
        self.operation: Operation | None = None
        self._watches = False
        self.start = 0
        self.extras: int | None = None
        self._next(None, is_first=True)

    def close(self) -> None:
        if self.operation is not None:
            self.operation.core.close()
        if self._watches:
            # A transaction of a client that is gone must not go on.
            self._connection.disconnect()
        self._world.pool.release(self._connection)

    def _draw(self, below: int) -> int:
        """Draw what the client draws at random, the same after the same replies."""
        self._draws += 1
        return random.Random(f"{self._number} {self._draws}").randrange(below)

    def _new_token(self, _size: int) -> bytes:
        return b"%d.%d" % (self._number, self._draw(10**6))

    def _next(self, answer: Any, *, is_first: bool = False) -> None:
        try:
            self.operation = next(self._program) if is_first else self._program.send(answer)
        except StopIteration:
            self.operation = None
            return
        self.start, self.extras = self._world.tick(), None
        self.operation = self.operation._replace(core=in_two_requests(self.operation.core))
        self._resume(self.operation.core.send, None)

    def _resume(self, how: Callable[[Any], Any], value: Any) -> None:
        """Give the core an answer, and take the commands that it wants carried out next."""
        try:
            with (
                mock.patch.object(secrets, "randbelow", self._draw),
                mock.patch.object(secrets, "token_bytes", self._new_token),
                # By the digest a script that the server lacks would take one step more.
                mock.patch.object(Script, "by_digest", Script.by_source),
            ):
                step = how(value)
                while (answer := self._answer_at_once(step)) is not step:
                    step = self.operation.core.send(answer)
        except StopIteration as stop:
            self._end("done" if stop.value is None else stop.value)
        except (OutcomeUnknownError, redis.ConnectionError, asyncio.CancelledError):
            self._end(None)
        except self._world.answers as error:
            self._end(type(error).__name__)
        else:
            self._is_parallel = isinstance(step, Parallel)
            self._requests = list(step.requests) if self._is_parallel else [step]
            self._left = [
                (n, unit) for n, one in enumerate(self._requests) for unit in units_of(one)
            ]
            self._got: list[list[Any]] = [[] for _ in self._requests]

    def _answer_at_once(self, step: Any) -> Any:
        """Return what a core gets for a step that needs no key of the server; else the step."""
        if isinstance(step, (Request, Pipeline, Parallel)):
            is_info = isinstance(step, Request) and b"INFO" in step.commands[0][:20]
            return self._execute(step.commands) if is_info else step
        assert isinstance(step, Pause), f"the explorer has no answer to {step}"
        # No more is known of the memory.
        return None

    def _end(self, value: Any) -> None:
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        end = math.inf if value is None else self._world.tick()
        shown = self._world.show_answer(value)
        done = Done(self.start, end, self.operation.kind, shown, self._number, self.extras or 0)
        self._world.history.append(done)
        self._next(value)

    def go_on(self, fate: str, most: float) -> int:
        """Take a step, or several of one request at once; return how many."""
        if self.extras is None:
            # What was known before its first command is of this client alone.
            self.start, self.extras = self._world.tick(), self._world.extras
        if fate == DONE:
            return self._take_steps(most)
        number, unit = self._left.pop(0)
        if fate == LATE:
            rest = [each for request, each in self._left if request == number]
            self._world.late.append((self._connection, [unit, *rest]))
            self._connection, self._watches = self._world.pool.get_connection(), False
        if fate not in (BEFORE, LATE):
            self._execute(unit)
        self.replies.append(fate)
        if fate == CANCELLED:
            self._resume(self.operation.core.throw, asyncio.CancelledError())
            return 1
        if fate in (AFTER, LATE) and self._world.resends:
            sent = Done(self.start, math.inf, self.operation.kind, None, self._number)
            self._world.history.append(sent)
        cause = redis.ConnectionError("lost by the explorer")
        lost = ConnectionLost(cause, sent=True, replies=self._got[number])
        if not self._is_parallel:
            self._resume(self.operation.core.throw, lost)
            return 1
        rest = [ConnectionLost(cause, sent=False, replies=[]) for _ in self._got[number + 1 :]]
        self._resume(self.operation.core.send, [*self._got[:number], lost, *rest])
        return 1

    def _take_steps(self, most: float) -> int:
        taken = self._left[: int(min(most, len(self._left)))]
        del self._left[: len(taken)]
        replies = iter(self._execute([command for _, unit in taken for command in unit]))
        for number, unit in taken:
            own = [*islice(replies, len(unit))]
            self.replies.append(self._world.blur(repr(own)))
            self._got[number] += own
        if not self._left:
            self._resume(self.operation.core.send, self._got if self._is_parallel else self._got[0])
        return len(taken)

    def _execute(self, commands: Sequence[bytes]) -> list[Any]:
        self._watches = self._watches or any(b"\r\nWATCH\r\n" in one[:20] for one in commands)
        return execute(self._connection, commands)


class Cores:
    """Clients of one server, each the production cores of its program; `take` changes it.

    Args:
        client: Of the server.
        programs: What each client does.
        faults: How many commands are lost, or their replies, at most.
        fates: What may become of those: LATE is lost, and may still arrive; CANCELLED arrives, and
            then the call is cancelled.
        resends: Whether a command whose reply is lost is sent again, and does all that its
            operation does; then the history has it twice, once without an answer.
        extra: By name how often something else happens at most, and what does it.
        answers: Exceptions that are answers: the history has their names.
        show_answer: Returns of an answer what the history has.
        show_contents, blur: Return what tells apart what the server has, and replies, without
            what only differs by the time.

    Attributes:
        found, shown: What the server has in the state that is checked, as it is and as shown.
    """

    def __init__(
        self,
        client: redis.Redis,
        programs: Iterable[Generator[Operation, Any, None]],
        *,
        faults: int = 0,
        fates: Sequence[str] = (BEFORE, AFTER),
        resends: bool = False,
        extra: Mapping[str, tuple[int, Callable[[], object]]] | None = None,
        answers: tuple[type[Exception], ...] = (),
        show_answer: Callable[[Any], Any] = lambda answer: answer,
        show_contents: Callable[[Contents], Hashable] = lambda contents: contents,
        blur: Callable[[str], str] = lambda replies: replies,
    ) -> None:
        self.client, self.pool = client, client.connection_pool
        self.answers, self.show_answer, self.resends = answers, show_answer, resends
        self.show_contents, self.blur = show_contents, blur
        self.history: list[Done] = []
        self.taken: list[Move] = []
        self.found: Contents = ()
        self.shown: Hashable = ()
        self._ticks = self.extras = 0
        self._faults, self._fates = faults, fates
        self.late: list[tuple[Any, list[list[bytes]]]] = []
        self._acts = dict(extra or {})
        self._left = {name: count for name, (count, _) in self._acts.items()}
        self._clients: list[_Client] = []
        for number, program in enumerate(programs):
            self._clients.append(_Client(self, number, program))

    def __str__(self) -> str:
        return "\n  ".join(map(str, self.operations()))

    def judge(self, check: Callable[[Cores], object]) -> None:
        """Check the end of a way, which is told of what is raised."""
        with _telling(lambda: self.taken, lambda: self):
            self.key()
            check(self)
            self.close()

    def tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def operations(self) -> list[Done]:
        """Return the history, with what is under way; an operation without a command is not."""
        going = [
            Done(one.start, math.inf, one.operation.kind, None, number, one.extras)
            for number, one in enumerate(self._clients)
            if one.operation is not None and one.extras is not None
        ]
        return in_rounds([*self.history, *going])

    def key(self) -> Hashable:
        replies = tuple(tuple(one.replies) for one in self._clients)
        left = tuple(self._left.items())
        self.found = contents_of(self.client)
        self.shown = self.show_contents(self.found)
        late = tuple(tuple(map(tuple, units)) for _, units in self.late)
        return self.shown, replies, tuple(self.operations()), left, self._faults, late

    def is_going(self, client: int) -> bool:
        return self._clients[client].operation is not None

    def moves(self) -> list[Move]:
        going = [number for number, one in enumerate(self._clients) if one.operation is not None]
        fates = (DONE, *self._fates) if self._faults else (DONE,)
        found = [Move(number, fate) for number in going for fate in fates]
        found += [Move(EXTRA, f"{LATE} {number}") for number in range(len(self.late))]
        if going:
            found += [Move(EXTRA, name) for name, count in self._left.items() if count]
        return found

    def take(self, move: Move, most: float = 1) -> int:
        """Make a move once, or as often as it goes in one request; return how often."""
        self.taken.append(move)
        if move.client == EXTRA and move.what.startswith(LATE):
            connection, units = self.late[int(move.what.split()[1])]
            execute(connection, units.pop(0))
            if not units:
                self.late.remove((connection, units))
                self._end_connection(connection)
            return 1
        if move.client == EXTRA:
            self._left[move.what] -= 1
            self.extras += 1
            begun = self.tick()
            self._acts[move.what][1]()
            self.history.append(Done(begun, self.tick(), move.what, None))
            return 1
        self._faults -= move.what != DONE
        times = self._clients[move.client].go_on(move.what, most)
        self.taken += [move] * (times - 1)
        return times

    def close(self) -> None:
        for one in self._clients:
            one.close()
        for connection, _ in self.late:
            self._end_connection(connection)

    def _end_connection(self, connection: Any) -> None:
        connection.disconnect()
        self.pool.release(connection)


def execute(connection: Any, commands: Sequence[bytes]) -> list[Any]:
    """Send commands and return their replies; an error of the server stands among them."""
    connection.send_packed_command([b"".join(commands)])
    replies = []
    for _ in commands:
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except redis.ResponseError as error:
            replies.append(error)
    return replies


def units_of(request: Request | Pipeline) -> Iterator[list[bytes]]:
    """Yield the commands of a request; those of a transaction together."""
    if isinstance(request, Pipeline):
        commands = [command for write in request.writes() for command in write]
    else:
        commands = list(request.commands)
    while commands:
        end = commands.index(EXEC) + 1 if commands[0] == MULTI else 1
        yield commands[:end]
        commands = commands[end:]


def contents_of(client: redis.Redis) -> Contents:
    keys = sorted(client.keys())
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.dump(key)
        return tuple(zip(keys, pipe.execute(), strict=True))


def put_back(client: redis.Redis, contents: Contents) -> None:
    """Let a server have these keys and no others."""
    with client.pipeline(transaction=False) as pipe:
        pipe.flushdb()
        for key, value in contents:
            pipe.restore(key, 0, value)
        pipe.execute()
