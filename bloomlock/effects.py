"""What goes to Redis and how its reply is read: values, no I/O.

Algorithms are generators ("cores"). A core yields a step, gets back what came of it, and returns
its result; the runtimes (bloomlock/runtime) carry the steps out, one for threads and one for
asyncio. A core decides by itself what a lost connection means, because only it knows whether
its commands may be sent twice.

Some steps can be carried out in several ways: by a native command, by a script, by a transaction.
Such a step is a sequence of `Way`s, best first, and `run_ways` carries it out for any number of
items: it skips ways that the server is known not to allow, hands the items that a way refuses to
the next one, and notes what the server lacks in a set that its caller keeps for each client.

    ways = (Way("DELIFEQ", by_command), Way("scripts", by_script), Way("", under_watch))
    answers = yield from run_ways(ways, items, missing)  # errors stand in the list, as values
    answer = yield from run_way(ways, item, missing)     # for one item; raises its error
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import redis.exceptions
from redis.exceptions import ExecAbortError

T = TypeVar("T")
Item = TypeVar("Item")
Replies: TypeAlias = list[Any]
Command: TypeAlias = "bytes | Parts"


class Parts(tuple["bytes | memoryview", ...]):
    """One RESP-encoded command in parts; a `memoryview` among them is sent uncopied.

    What it shows must not change until all replies have come, nor later if they do not come.
    """

    __slots__ = ()


class Request(NamedTuple):
    """Commands for one server, sent at once, answered in order by a list of replies.

    An error that the server answers stands in the list as an exception.

    Attributes:
        key: Any key of the commands; it names the server of a cluster.
        commands: Each one RESP-encoded command with one reply.
        hold: Keep the connection for the next request of the same core (WATCH). A core that does
            something else than end the transaction costs its client a connection. The first such
            request may be carried out twice.
        room: Where the runtime may receive the replies; strings among them may be views of it.
        waits: Whether to wait while a cluster moves the slot (TRYAGAIN); else that is the answer.
        replica: Whether a replica of a cluster answers, if there is one; the commands only read.
    """

    key: str
    commands: Sequence[Command]
    hold: bool = False
    room: memoryview | None = None
    waits: bool = True
    replica: bool = False

    @property
    def num_replies(self) -> int:
        """How many replies there will be."""
        return len(self.commands)


class Writes(Protocol):
    """Commands in several writes, each made when it is its turn; once more for each try."""

    def __len__(self) -> int:
        """Return the number of commands in all writes together."""

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        """Make one write after the other."""


class Pipeline(NamedTuple):
    """Commands for one server, sent without waiting for the replies to those before.

    Few commands have no reply when the next write is made (see parallel.py). Answered as a Request.

    Attributes:
        key: Any key of the commands; it names the server of a cluster.
        writes: The commands, made while the server works on those before.
        replica: As of Request.
    """

    key: str
    writes: Writes
    replica: bool = False

    @property
    def num_replies(self) -> int:
        """How many replies there will be."""
        return len(self.writes)


class Parallel(NamedTuple):
    """Requests to one server or to several nodes of a cluster, all under way at once.

    What goes to one server is one pipeline. Answered by a list: for each request its replies, or
    the ConnectionLost that it would have raised by itself.

    Attributes:
        requests: None of them holds a connection.
    """

    requests: Sequence[Request | Pipeline]


class Pause(NamedTuple):
    """Wait before the next step."""

    seconds: float


class Subscribe(NamedTuple):
    """Receive announcements until the core ends; answered by the channel, b"" if there is none.

    Attributes:
        key: Any key of the commands; it names the server of a cluster.
        connect: Whether to connect for it; else only what is connected already is used.
        seconds: How long connecting may take; None: as long as the client allows.
    """

    key: str
    connect: bool
    seconds: float | None = None


class NextMessage(NamedTuple):
    """Wait for a message on the channel; answered by the message, or by None.

    None means that the time is over, or that messages may have been missed.

    Attributes:
        addressee: First word of the message waited for; others are not for this core.
        seconds: How long at most.
    """

    addressee: bytes
    seconds: float


class Clock(NamedTuple):
    """Answered by the clock that leases are counted by, a function that returns seconds."""


class Limit(NamedTuple):
    """Wait for the answers to the requests of this core no longer than until some time.

    A request that has no answer by then is a ConnectionLost by a time-out, though it goes on.

    Attributes:
        until: By the clock of Clock; None: as long as the client waits.
        line: A list of one element, None at first: what goes on, for the runtime to keep its order.
    """

    until: float | None
    line: list[Any]


class Behind(NamedTuple):
    """Carry out another core after what goes on in a line, to its end, however long that takes.

    Attributes:
        core: What is carried out; it must not raise.
        line: See Limit.
        seconds: How long to wait for its end.
    """

    core: Generator[Any, Any, None]
    line: list[Any]
    seconds: float


class FanOut(NamedTuple):
    """Run a core at each server of the runtime, all at once.

    Answered by the list of their results: an exception where one was raised, None where there is
    no result in time. What is late goes on in the background, and the next core of the same line
    runs after it.

    When enough is known the rest is waited for as long again: a server that is merely the last
    one counts, and a silent one costs little.

    Attributes:
        cores: One for each server.
        lines: One for each server; see Limit.
        until: When the wait ends, by the clock of Clock.
        is_enough: Called with the results so far; True: no more are needed.
        background_s: Seconds after which a core may be given up in the background too.
    """

    cores: Sequence[Generator[Any, Any, Any]]
    lines: Sequence[list[Any]]
    until: float
    is_enough: Callable[[Sequence[Any]], bool]
    background_s: float

    def end_of_grace(self, began: float, now: float) -> float:
        """Return until when to wait for the rest after enough is known."""
        return min(self.until, now + (now - began) + SHORTEST_GRACE_S)


class FreeMemory(NamedTuple):
    """Answered by the bytes of memory that are free on the machine of a server.

    Answered by None where the server is not known to be on this machine.

    Attributes:
        key: Any key of the server.
    """

    key: str


class Elsewhere(NamedTuple):
    """Carry out a core over the client of another object; see `elsewhere`.

    Answered by its result and None, or by None and the exception that it raised.

    Attributes:
        run: Carries out a core there; what it returns is awaited by a runtime of asyncio.
        core: What is carried out.
    """

    run: Callable[[Generator[Any, Any, Any]], Any]
    core: Generator[Any, Any, Any]


class IsCluster(NamedTuple):
    """Answered by whether keys lie on several servers, of which some may be down."""


class EnterContext(NamedTuple):
    """Enter a context manager, and leave it when the core ends if it did not do so itself.

    Answered by None, or by the exception that entering raised.
    """

    manager: Any


class ExitContext(NamedTuple):
    """Leave the context manager entered last; answered as EnterContext."""


NO_LIMIT = Limit(None, [])
SHORTEST_GRACE_S = 0.002
Effect: TypeAlias = (
    Parallel
    | Pause
    | Subscribe
    | NextMessage
    | Clock
    | Behind
    | FanOut
    | FreeMemory
    | Elsewhere
    | IsCluster
    | EnterContext
    | ExitContext
)
"""A step that needs no connection of its own."""
Step: TypeAlias = Request | Pipeline | Limit | Effect
Core: TypeAlias = Generator[Step, Any, T]


class Servers(Protocol):
    """What a runtime knows of the servers behind it."""

    def server_of(self, key: str) -> str:
        """Return which server of a cluster has a key; empty if there is only one, or none."""

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:
        """Return the items in groups, each of which one request may carry."""


class Runtime(Servers, Protocol):
    """Carries out the steps of cores, for threads."""

    @property
    def members(self) -> Sequence[Runtime]:
        """The runtime of each server that a FanOut goes to; itself if there is one server."""

    def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""


class AsyncRuntime(Servers, Protocol):
    """Carries out the steps of cores, for asyncio."""

    @property
    def members(self) -> Sequence[AsyncRuntime]:
        """The runtime of each server that a FanOut goes to; itself if there is one server."""

    async def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""


AnyRuntime: TypeAlias = Runtime | AsyncRuntime


class ConnectionLost(Exception):  # noqa: N818 - never reaches a caller; it is an event, not an error
    """A request got no full answer; thrown into the core that yielded it.

    Attributes:
        cause: redis-py's error.
        sent: Whether any byte of the request may have reached the server.
        replies: The replies that did arrive, a prefix of all.
        written: How many commands may have reached the server, if not all of a request.
    """

    def __init__(
        self, cause: Exception, *, sent: bool, replies: Replies, written: int | None = None
    ) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.sent = sent
        self.replies = replies
        self.written = written


Outcome: TypeAlias = Replies | ConnectionLost
"""What came of one request of several."""


def is_refusal(error: Exception) -> bool:
    """Return whether an error raised while a reply was read is what the server answered.

    Then the command was not carried out, and the connection goes on. redis-py makes connection
    errors of some answers, though they are as definite as any other.
    """
    return isinstance(error, _REFUSALS) or str(error) == _NO_ROOM


def is_slot_refusal(reply: object) -> bool:
    """Return whether a cluster refused a command because its slot moves, or is elsewhere.

    Nothing was done then. In a transaction it holds for all of it.
    """
    return isinstance(reply, _SLOT_REFUSALS)


def ends_connection(refusal: Exception) -> bool:
    """Return whether the server closes the connection with this answer, and reads no more of it."""
    message = str(refusal)
    return message == _NO_ROOM or message.startswith("Protocol error")


_REFUSALS = (
    redis.exceptions.ResponseError,
    # -LOADING, -NOAUTH and the like
    redis.exceptions.BusyLoadingError,
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
)
_SLOT_REFUSALS = (
    redis.exceptions.AskError,  # MovedError is a kind of it
    redis.exceptions.TryAgainError,
)
_NO_ROOM = "max number of clients reached"

MOVING_SECONDS = 30.0
"""How long a request waits at most for a slot that moves."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
"""Between its tries."""

RETRY_PAUSES = (0.0, 0.2)
"""Seconds before the second and third try of a request that may be repeated."""


def encode_command(*arguments: str | bytes | int) -> bytes:
    r"""Return one command in RESP (https://redis.io/docs/latest/develop/reference/protocol-spec/).

    >>> encode_command("GET", "a")
    b'*2\r\n$3\r\nGET\r\n$1\r\na\r\n'
    """
    return b"*%d\r\n%b" % (len(arguments), encode_arguments(*arguments))


def encode_large(name: str, key: str, large: memoryview, *rest: str | bytes | int) -> Parts:
    """Return a command whose second argument is large."""
    opening = b"*%d\r\n%b$%d\r\n" % (3 + len(rest), encode_arguments(name, key), len(large))
    return Parts((opening, large, b"\r\n" + encode_arguments(*rest)))


def join_commands(commands: Sequence[Command | memoryview]) -> list[bytes | memoryview]:
    """Return all commands in few parts.

    >>> join_commands([b"a", b"b", Parts((b"c", memoryview(b"large"), b"d")), b"e"])[::2]
    [b'abc', b'de']
    """
    joined: list[bytes | memoryview] = []
    small: list[bytes] = []
    for command in commands:
        for part in command if isinstance(command, Parts) else (command,):
            if isinstance(part, bytes):
                small.append(part)
            else:
                joined += (b"".join(small), part)
                small = []
    joined.append(b"".join(small))
    return joined


def encode_arguments(*arguments: str | bytes | int) -> bytes:
    r"""Return arguments as they stand in a command, for commands of which most stays the same.

    >>> encode_arguments("GET", 1)
    b'$3\r\nGET\r\n$1\r\n1\r\n'
    """
    parts = []
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


MULTI = encode_command("MULTI")
EXEC = encode_command("EXEC")
UNWATCH = encode_command("UNWATCH")
READONLY = Request("", [encode_command("READONLY")])
"""Goes before what a replica is to answer, on the same connection."""


def ends_transaction(commands: Sequence[Command], replies: Replies) -> bool:
    """Return whether a connection has neither MULTI nor WATCH pending after these commands.

    A server that aborts EXEC discards the transaction and all WATCHes. Any other error, such as
    that of a proxy without transactions, leaves open what has become of them.

    >>> ends_transaction([MULTI, EXEC], [b"OK", None]), ends_transaction([MULTI], [b"OK"])
    (True, False)
    """
    for command, reply in zip(reversed(commands), reversed(replies), strict=True):
        if command == EXEC:
            return not isinstance(reply, Exception) or isinstance(reply, ExecAbortError)
        if command == UNWATCH:
            return not isinstance(reply, Exception)
    return False


def deliver(
    request: Request | Pipeline, *, repeatable: bool, lost: ConnectionLost | None = None
) -> Core[Replies]:
    """Send a request, again where that is safe, and return its replies.

    Safe is: nothing was sent yet, or the commands may be repeated. A time-out has already waited
    long and is followed by one more try only.

    Args:
        request: What is sent.
        repeatable: Whether it may be carried out twice.
        lost: What became of a first try, if that was made already.

    Raises:
        ConnectionLost: When the tries are used up.
    """
    replies: Replies
    for pause in RETRY_PAUSES:
        if lost is None:
            try:
                replies = yield request
            except ConnectionLost as failed:
                lost = failed
            else:
                return replies
        if lost.sent and not repeatable:
            raise lost
        if isinstance(lost.cause, redis.exceptions.TimeoutError):
            if not lost.sent:
                raise lost
            break
        lost = None
        yield Pause(pause)
    replies = yield request
    return replies


def collect(
    request: Request | Pipeline, *, repeatable: bool, lost: ConnectionLost | None = None
) -> Core[Replies]:
    """Like `deliver`, but never raise: each reply that did not come is the ConnectionLost.

    Of a command that was not sent it is one that says so.
    """
    try:
        return (yield from deliver(request, repeatable=repeatable, lost=lost))
    except ConnectionLost as failed:
        count = request.num_replies
        written = count if failed.written is None else failed.written
        unsent = ConnectionLost(failed.cause, sent=False, replies=[])
        return [
            *failed.replies,
            *[failed] * (written - len(failed.replies)),
            *[unsent] * (count - written),
        ]


def ask(key: str, *commands: bytes) -> Core[Replies]:
    """Send commands that may be repeated and return their replies, none of them an error.

    Raises:
        redis.exceptions.RedisError: What the server answered, or why it could not be reached.
    """
    try:
        return check((yield from deliver(Request(key, commands), repeatable=True)))
    except ConnectionLost as lost:
        raise lost.cause from None


def elsewhere(run: Callable[[Core[T]], Any], core: Core[T]) -> Core[T]:
    """Carry out a core over the client of another object, and return its result or raise."""
    result, error = yield Elsewhere(run, core)
    if error is not None:
        raise error
    answer: T = result
    return answer


def check(replies: Replies) -> Replies:
    """Return the replies, or raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def slot_moves(key: str, seconds: float, error: Exception) -> redis.exceptions.TryAgainError:
    """Return the error for a command that a cluster refused for so long because its slot moves."""
    answer = type(error).__name__.removesuffix("Error").upper()
    return redis.exceptions.TryAgainError(
        f"the cluster moves the slot of key {key!r}, and did not end that within {seconds:.1f} s "
        f"(its server answers {answer} {error}); the command was not carried out; try again when "
        "the slot has moved"
    )


def through_moves(key: str, step: Callable[[], Core[T]]) -> Core[T]:
    """Run a step that ends by a transaction under WATCH, again while a cluster moves its slot.

    A runtime does so for other requests, and here waits for none. All begins anew with the WATCH,
    because the transaction belongs to the connection that watches.

    Args:
        key: Any key of the step.
        step: Makes its core. What a cluster refuses of it was not done.

    Raises:
        redis.exceptions.TryAgainError: If the slot still moves after MOVING_SECONDS.
    """
    clock = yield Clock()
    began, pause = clock(), SHORTEST_PAUSE_S
    while True:
        try:
            return (yield from without_waiting(step()))
        except redis.exceptions.ResponseError as error:
            if not is_slot_refusal(error):
                raise
            if clock() - began > MOVING_SECONDS:
                raise slot_moves(key, clock() - began, error) from None
        yield Pause(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def with_each_step(core: Core[T], carry_out: Callable[[Step], Core[Any]]) -> Core[T]:
    """Carry out a core, and each of its steps by another core, whose result is the answer."""
    try:
        step = next(core)
        while True:
            try:
                answer = yield from carry_out(step)
            except ConnectionLost as lost:
                step = core.throw(lost)
            else:
                step = core.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        core.close()


def without_waiting(core: Core[T]) -> Core[T]:
    """Carry out a core whose requests do not wait for a slot that moves; see Request."""
    return with_each_step(core, _without_waiting)


def _without_waiting(step: Step) -> Core[Any]:
    if isinstance(step, Request):
        step = step._replace(waits=False)
    elif isinstance(step, Parallel):
        requests = [
            one._replace(waits=False) if isinstance(one, Request) else one for one in step.requests
        ]
        step = Parallel(requests)
    return (yield step)


class Way(NamedTuple, Generic[Item, T]):
    """One way to carry out a step for several items at once.

    Attributes:
        needs: What the server must allow for it; ways with the same need are skipped together.
        send: Carries it out. Answers each item in order, by a result or by the exception that
            came instead.
        is_refused: Whether an exception means that nothing was done for its item, so that the
            next way may do it.
        request: Returns what is sent for one item, and whether it may be repeated; None: `send`
            takes more than one request.
        read: Reads the replies to that: the result, or the exception that came instead.
    """

    needs: str
    send: Callable[[Sequence[Item]], Core[list[T | Exception]]]
    is_refused: Callable[[Exception], bool] = lambda error: (
        isinstance(error, redis.exceptions.NoScriptError) or is_missing(error)
    )
    request: Callable[[Item], tuple[Request, bool]] | None = None
    read: Callable[[Replies], T | Exception] | None = None


def is_missing(error: Exception) -> bool:
    """Return whether this user or server lacks the command, so that it need not be tried again.

    Other errors come and go, such as those of a server that fails over.
    """
    return isinstance(error, redis.exceptions.NoPermissionError) or (
        isinstance(error, redis.exceptions.ResponseError)
        and str(error).lower().startswith(("unknown command", "syntax error"))
    )


def run_ways(
    ways: Sequence[Way[Item, T]], items: Sequence[Item], missing: set[str]
) -> Core[list[T | Exception]]:
    """Carry out a step for each item, in the first way that does not refuse it.

    Args:
        ways: Best first; the last is tried even if the server is known to lack what it needs.
        items: What it is carried out for.
        missing: What the server is known to lack; what is found out is added.

    Returns:
        For each item its result, or the exception that the last way tried answered it with.
    """
    way = ways[0]
    while way.needs in missing and len(ways) > 1:
        ways = ways[1:]
        way = ways[0]
    answers = yield from way.send(items)
    return (yield from _hand_on(ways, items, answers, missing))


def _hand_on(
    ways: Sequence[Way[Item, T]],
    items: Sequence[Item],
    answers: list[T | Exception],
    missing: set[str],
) -> Core[list[T | Exception]]:
    """Let the next way carry out what the first of `ways` has refused."""
    way = ways[0]
    refused = [
        (index, answer)
        for index, answer in enumerate(answers)
        if isinstance(answer, Exception) and way.is_refused(answer)
    ]
    if not refused:
        return answers
    if any(is_missing(error) for _, error in refused):
        missing.add(way.needs)
    if len(ways) > 1:
        left = [items[index] for index, _ in refused]
        later = yield from run_ways(ways[1:], left, missing)
        for (index, _), answer in zip(refused, later, strict=True):
            answers[index] = answer
    return answers


def run_way(ways: Sequence[Way[Item, T]], item: Item, missing: set[str]) -> Core[T]:
    """Carry out a step for one item; see `run_ways`.

    Raises:
        ConnectionLost, redis.exceptions.RedisError: What a way answered instead of a result.
    """
    way = ways[0]
    if way.request is None or way.read is None or way.needs in missing:
        (answer,) = yield from run_ways(ways, (item,), missing)
    else:
        # The same as `send`, with fewer calls.
        request, repeatable = way.request(item)
        try:
            replies = yield request
        except ConnectionLost as lost:
            replies = yield from collect(request, repeatable=repeatable, lost=lost)
        answers: list[T | Exception] = [way.read(replies)]
        if isinstance(answers[0], Exception):
            answers = yield from _hand_on(ways, (item,), answers, missing)
        (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer
