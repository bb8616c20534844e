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

T = TypeVar("T")
Replies: TypeAlias = list[Any]
Command: TypeAlias = "bytes | Parts"

make = tuple.__new__
"""`make(Request, fields)` calls no function in Python: those are what a lock's hand-over costs."""


class Parts(tuple["bytes | memoryview", ...]):
    """One RESP-encoded command in parts; a `memoryview` among them is sent uncopied.

    What it shows must not change until all replies have come, nor later if they do not come.
    """

    __slots__ = ()


class Request(NamedTuple):
    """Commands for the server of `key`, sent at once; answered by a list of replies.

    An error that the server answers stands in the list. The runtime may receive replies in `room`,
    and return views of it. Without `waits` TRYAGAIN is an answer, and else waited for.
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
    """Commands like a Request's, in writes of which few have no reply (see `writes_of`).

    `writes` is called again for each try.
    """

    key: str
    num_replies: int
    writes: Callable[[], Iterator[Sequence[bytes]]]
    waits: bool = True


class Transaction(NamedTuple):
    """WATCH, a look, and by what that found a transaction, all on one connection.

    `decide` gets the replies to `looks`; it returns a result, and the commands between MULTI and
    EXEC. Answered by the result and the replies from MULTI to EXEC, None if there was no command.
    """

    key: str
    looks: Sequence[Command]
    decide: Callable[[Replies], tuple[Any, Sequence[Command]]]


class Parallel(NamedTuple):
    """Requests to all their servers at once; answered by a list of replies or ConnectionLost."""

    requests: Sequence[Request | Pipeline]


class Pause(NamedTuple):
    seconds: float


class Subscribe(NamedTuple):
    """Receive announcements until the core ends; answered by the channel, b"" if there is none.

    Without `connect` only a connection that is there already is used.
    """

    key: str
    connect: bool
    seconds: float | None = None


class NextMessage(NamedTuple):
    """Answered by the next message whose first word is `addressee`.

    None means that the time is over, or that messages may have been missed.
    """

    addressee: bytes
    seconds: float


class Limit(NamedTuple):
    """Wait for later answers no longer than `until`, by `boot_clock`.

    A request without an answer by then is a ConnectionLost by a time-out, though it goes on.
    `queue` is a list of one element, None at first, by which the runtime keeps the order of those.
    """

    until: float | None
    queue: list[Any]
    waits: bool = True


class RunAfter(NamedTuple):
    """Carry out a core after what goes on in a queue (see Limit), to its end; wait `seconds`."""

    core: Generator[Any, Any, None]
    queue: list[Any]
    seconds: float


class FanOut(NamedTuple):
    """Run a core at each server of the runtime, all at once; answered by the list of their results.

    A result is an exception where one was raised, and None where there is none in time. What is
    late goes on in the background, for `background_s` at most, and the next core of the same queue
    runs after it. When `is_enough` says so of the results, the rest is waited for as long again: a
    server that is merely the last one counts, and a silent one costs little.
    """

    cores: Sequence[Generator[Any, Any, Any]]
    queues: Sequence[list[Any]]
    until: float
    is_enough: Callable[[Sequence[Any]], bool]
    background_s: float | None

    def end_of_grace(self, began: float, now: float) -> float:
        return min(self.until, now + (now - began) + SHORTEST_GRACE_S)


class RunOn(NamedTuple):
    """Carry out a core by `run`, over the client of another object; answered by its result."""

    run: Callable[[Generator[Any, Any, Any]], Any]
    core: Generator[Any, Any, Any]


class Call(NamedTuple):
    """Call a function that may wait for a disk; asyncio calls it in a thread of its own."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


NO_LIMIT, NOT_WAITING = Limit(None, []), Limit(None, [], waits=False)
SHORTEST_GRACE_S = 0.002
Asking: TypeAlias = Request | Pipeline | Transaction | Parallel
Effect: TypeAlias = Pause | Subscribe | NextMessage | RunAfter | FanOut | RunOn | Call
Step: TypeAlias = Asking | Limit | Effect
Core: TypeAlias = Generator[Step, Any, T]


class AnyRuntime(Protocol):
    is_async: bool

    @property
    def members(self) -> Sequence[AnyRuntime]:
        """The runtime of each server that a FanOut goes to; itself if there is one server."""

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:
        """Return the items in groups, each of which one request may carry."""

    def run(self, core: Core[Any]) -> Any:
        """Carry out a core and return its result; in asyncio it is a coroutine that does."""


class ConnectionLost(Exception):  # noqa: N818 - never reaches a caller; it is an event, not an error
    """A request got no full answer; thrown into the core that yielded it.

    `sent` says whether any byte may have reached the server, `written` how many commands, if not
    all; `replies` are those that did arrive.
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
    """Let a user see of an error and two causes the frames of the user's code and the last one."""
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
