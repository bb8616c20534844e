"""What a core yields, and what carries it out: values and protocols, no I/O.

Algorithms are generators ("cores"). A core yields a step, gets back what came of it, and returns
its result; the runtimes (bloomlock/runtime) carry the steps out, one for threads and one for
asyncio. A core decides by itself what a lost connection means, because only it knows whether
its commands may be sent twice.

Whatever a step raises is raised in the core, KeyboardInterrupt and a cancellation too. A core may
send requests then, to take back what it has begun, before it raises the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from .commands import Command, Replies

T = TypeVar("T")

make = tuple.__new__
"""`make(Request, fields)`: a named tuple of all its fields, without its own function in Python.

For values of which each grant of a lock makes some: functions are what a hand-over costs."""


class Request(NamedTuple):
    """Commands for one server, sent at once, answered in order by a list of replies.

    An error that the server answers stands in the list as an exception.

    Attributes:
        key: Any key of the commands; it names the server of a cluster.
        commands: Each one RESP-encoded command with one reply.
        room: Where the runtime may receive the replies; strings among them may be views of it.
        waits: Whether to wait while a cluster moves the slot (TRYAGAIN); else that is the answer.
    """

    key: str
    commands: Sequence[Command]
    room: memoryview | None = None
    waits: bool = True

    @property
    def num_replies(self) -> int:
        return len(self.commands)

    def writes(self) -> Iterator[Sequence[Command]]:
        yield self.commands


class Pipeline(NamedTuple):
    """Commands for one server, sent without waiting for the replies to those before.

    Few commands have no reply when the next write is made (see parallel.py). Answered as a Request.

    Attributes:
        key: Any key of the commands.
        num_replies: How many commands there are.
        writes: Makes one write after the other; called again for each try.
        waits: As of a Request.
    """

    key: str
    num_replies: int
    writes: Callable[[], Iterator[Sequence[bytes]]]
    waits: bool = True


class Transaction(NamedTuple):
    """WATCH, a look, and by what that found a transaction, all on one connection.

    Answered by the result of `decide`, and by the replies from MULTI to EXEC, None if nothing was
    to be done. Where a cluster refuses a command because its slot moves, nothing was done either,
    and all begins again.

    Attributes:
        key: Any key of the commands.
        looks: The commands of the look; WATCH comes first.
        decide: Gets the replies; returns a result, and the commands between MULTI and EXEC.
    """

    key: str
    looks: Sequence[Command]
    decide: Callable[[Replies], tuple[Any, Sequence[Command]]]


class Parallel(NamedTuple):
    """Requests to one server or to several nodes of a cluster, all under way at once.

    What goes to one server is one pipeline. Answered by a list: for each request its replies, or
    the ConnectionLost that it would have raised by itself.
    """

    requests: Sequence[Request | Pipeline]


class Pause(NamedTuple):
    """Wait before the next step."""

    seconds: float


class Subscribe(NamedTuple):
    """Receive announcements until the core ends; answered by the channel, b"" if there is none.

    Without `connect` only a connection that is there already is used. `seconds` bounds how long
    connecting may take; None: as long as the client allows.
    """

    key: str
    connect: bool
    seconds: float | None = None


class NextMessage(NamedTuple):
    """Wait for a message whose first word is `addressee`; answered by the message, or by None.

    None means that the time is over, or that messages may have been missed.
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
        waits: Whether requests wait while a cluster moves their slot.
    """

    until: float | None
    line: list[Any]
    waits: bool = True


class Behind(NamedTuple):
    """Carry out a core that never raises after what goes on in a line (see Limit), to its end.

    The step itself takes no longer than `seconds`.
    """

    core: Generator[Any, Any, None]
    line: list[Any]
    seconds: float


class FanOut(NamedTuple):
    """Run a core at each server of the runtime, all at once; answered by the list of their results.

    A result is an exception where one was raised, and None where there is none in time. What is
    late goes on in the background, and the next core of the same line runs after it. When enough is
    known the rest is waited for as long again: a server that is merely the last one counts, and a
    silent one costs little.

    Attributes:
        cores: One for each server.
        lines: One for each server; see Limit.
        until: When the wait ends, by the clock of Clock.
        is_enough: Called with the results so far; True: no more are needed.
        background_s: Seconds after which a core may be given up in the background too, if any.
    """

    cores: Sequence[Generator[Any, Any, Any]]
    lines: Sequence[list[Any]]
    until: float
    is_enough: Callable[[Sequence[Any]], bool]
    background_s: float | None

    def end_of_grace(self, began: float, now: float) -> float:
        """Return until when to wait for the rest after enough is known."""
        return min(self.until, now + (now - began) + SHORTEST_GRACE_S)


class Elsewhere(NamedTuple):
    """Carry out a core over the client of another object; answered by its result.

    What `run` returns is awaited by a runtime of asyncio.
    """

    run: Callable[[Generator[Any, Any, Any]], Any]
    core: Generator[Any, Any, Any]


class IsCluster(NamedTuple):
    """Answered by whether keys lie on several servers, of which some may be down."""


class Within(NamedTuple):
    """Carry out a core inside a context manager; answered by its result."""

    manager: Any
    core: Generator[Any, Any, Any]


class Call(NamedTuple):
    """Call a function that may wait for a disk; asyncio calls it in a thread of its own."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


NO_LIMIT, NOT_WAITING = Limit(None, []), Limit(None, [], waits=False)
SHORTEST_GRACE_S = 0.002
Asking: TypeAlias = Request | Pipeline | Transaction | Parallel
"""A step that servers answer."""
Effect: TypeAlias = (
    Pause
    | Subscribe
    | NextMessage
    | Clock
    | Behind
    | FanOut
    | Elsewhere
    | IsCluster
    | Within
    | Call
)
Step: TypeAlias = Asking | Limit | Effect
Core: TypeAlias = Generator[Step, Any, T]


class AnyRuntime(Protocol):
    """Carries out the steps of cores, for threads or for asyncio."""

    @property
    def members(self) -> Sequence[AnyRuntime]:
        """The runtime of each server that a FanOut goes to; itself if there is one server."""

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:
        """Return the items in groups, each of which one request may carry."""

    def run(self, core: Core[Any]) -> Any:
        """Carry out a core and return its result; in asyncio it is a coroutine that does."""


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


_INNER = frozenset(("asyncio", "bloomlock", "contextlib", "redis"))
_LINKS = 3


def shorten_traceback(error: BaseException) -> None:
    """Let a user see of an error and two causes the frames of the user's code and the last one.

    Between a call and the socket are twenty frames that say nothing about the cause.
    """
    one: BaseException | None = error
    for number in range(_LINKS):
        if one is None:
            return
        entry, kept = one.__traceback__, []
        while entry is not None:
            module = str(entry.tb_frame.f_globals.get("__name__"))
            if entry.tb_next is None or module.partition(".")[0] not in _INNER:
                kept.append(entry)
            entry = entry.tb_next
        for above, below in pairwise(kept):
            above.tb_next = below
        one.__traceback__ = kept[0] if kept else None
        # The event of a core says the same as the error that is made of it.
        if number + 1 == _LINKS or isinstance(one.__context__, ConnectionLost):
            one.__suppress_context__ = True
        if number + 1 == _LINKS:
            one.__cause__ = None
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


Outcome: TypeAlias = Replies | ConnectionLost
"""What came of one request of several."""
