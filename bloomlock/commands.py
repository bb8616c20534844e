"""Commands: their encoding in RESP, retries, scripts, and cores in parallel.

A script is sent by its digest, and with its source if the server lacks it. The requests of parallel
cores go out as one `Parallel`: one pipeline to each server, to all servers at once. They cost the
round trips of the slowest core, and no core notices the others.
"""

from __future__ import annotations

import hashlib
from collections import deque
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import redis.exceptions
from redis.exceptions import ExecAbortError, NoScriptError

from .effects import (
    Command,
    ConnectionLost,
    Core,
    Parallel,
    Parts,
    Pause,
    Pipeline,
    Replies,
    Request,
    RunOn,
    Transaction,
)
from .errors import ConfigurationError
from .refusals import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .effects import Outcome

    Arguments = Callable[[], Sequence[bytes | int]]
    ScriptCall = tuple[Sequence[str], Sequence[str | bytes | int]]

T = TypeVar("T")
Write: TypeAlias = "tuple[int, int, list[bytes | memoryview]]"
"""The number of replies to read first, the number of commands written with it, and its bytes."""

WRITE_BYTES = 64 * 1024
"""Commands of different requests go out in one write up to this size."""

UNANSWERED_BYTES = 300_000
"""Bytes of commands without a reply, at which a pipeline stops to read: 8000 BITFIELD operations.

The outcome of unanswered commands is unknown if the connection is lost, so there are few of them.
Their replies must fit into the socket buffers, or the server could neither send nor read. Replies
are a seventh of the commands for bits, and less for packed items."""

RETRY_PAUSES = (0.0, 0.2)
"""Seconds before the second and third try of a request that may be repeated."""


def encode_command(*arguments: str | bytes | int) -> bytes:
    r"""Return one command.

    >>> encode_command("GET", "a")
    b'*2\r\n$3\r\nGET\r\n$1\r\na\r\n'
    """
    return b"*%d\r\n%b" % (len(arguments), encode_arguments(*arguments))


def encode_arguments(*arguments: str | bytes | int) -> bytes:
    parts = []
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def encode_opening(num_more: int, *arguments: str | bytes | int) -> bytes:
    """Return a command up to its last arguments, of which there are `num_more`."""
    return b"*%d\r\n%b" % (len(arguments) + num_more, encode_arguments(*arguments))


def encode_large(name: str, key: str, large: memoryview, *rest: str | bytes | int) -> Parts:
    opening = b"*%d\r\n%b$%d\r\n" % (3 + len(rest), encode_arguments(name, key), len(large))
    return Parts((opening, large, b"\r\n" + encode_arguments(*rest)))


def join_commands(commands: Sequence[Command | memoryview]) -> list[bytes | memoryview]:
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


MULTI = encode_command("MULTI")
EXEC = encode_command("EXEC")
UNWATCH = encode_command("UNWATCH")


def ends_transaction(commands: Sequence[Command], replies: Replies) -> bool:
    """Return whether a connection has neither MULTI nor WATCH pending after these commands.

    An aborted EXEC ends them too. After any other error they may be pending.
    """
    for command, reply in zip(reversed(commands), reversed(replies), strict=True):
        if command == EXEC:
            return not isinstance(reply, Exception) or isinstance(reply, ExecAbortError)
        if command == UNWATCH:
            return not isinstance(reply, Exception)
    return False


def send_with_retry(
    request: Request | Pipeline | Transaction,
    *,
    repeatable: bool,
    lost: ConnectionLost | None = None,
) -> Core[Replies]:
    """Send a request; retry it if nothing was sent or it is `repeatable`.

    `lost` is the failure of a first try. After a time-out, which took long, there is one more try.
    """
    for pause in RETRY_PAUSES:
        if lost is None:
            try:
                first: Replies = yield request
            except ConnectionLost as failed:
                lost = failed
            else:
                return first
        if lost.sent and not repeatable:
            raise lost
        if isinstance(lost.cause, redis.exceptions.TimeoutError):
            if not lost.sent:
                raise lost
            break
        lost = None
        yield Pause(pause)
    replies: Replies = yield request
    return replies


def send_or_lost(
    request: Request | Pipeline, *, repeatable: bool, lost: ConnectionLost | None = None
) -> Core[Replies]:
    """Like `send_with_retry`, but with a ConnectionLost in place of each missing reply."""
    try:
        return (yield from send_with_retry(request, repeatable=repeatable, lost=lost))
    except ConnectionLost as failed:
        count = request.num_replies
        written = count if failed.written is None else failed.written
        unsent = ConnectionLost(failed.cause, sent=False, replies=[])
        unknown = [failed] * (written - len(failed.replies))
        return [*failed.replies, *unknown, *[unsent] * (count - written)]


def call(key: str, *commands: bytes) -> Core[Replies]:
    """Send repeatable commands; raise the first error reply, or the cause of a lost connection."""
    try:
        return check((yield from send_with_retry(Request(key, commands), repeatable=True)))
    except ConnectionLost as lost:
        raise lost.cause from None


def run_on(run: Callable[[Core[T]], Any], core: Core[T]) -> Core[T]:
    answer: T = yield RunOn(run, core)
    return answer


def check(replies: Replies) -> Replies:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


class Script:
    """A script, made of `body` and files of the folder scripts."""

    def __init__(self, *names: str, body: str = "") -> None:
        folder = files("bloomlock") / "scripts"
        self.source = body + "".join((folder / f"{name}.lua").read_text("utf-8") for name in names)
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def by_digest(self, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> bytes:
        return encode_command("EVALSHA", self.digest, len(keys), *keys, *arguments)

    def by_source(self, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> bytes:
        return encode_command("EVAL", self.source, len(keys), *keys, *arguments)

    def call(
        self, calls: Sequence[ScriptCall], *, repeatable: bool, lost: ConnectionLost | None = None
    ) -> Core[Replies]:
        """Run the script once for each call, in one round trip (two where it was not loaded)."""
        request = Request(calls[0][0][0], [self.by_digest(*call) for call in calls])
        replies = yield from send_or_lost(request, repeatable=repeatable, lost=lost)
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            # These calls did not run.
            request = Request(request.key, [self.by_source(*calls[i]) for i in again])
            late = yield from send_or_lost(request, repeatable=repeatable)
            for index, reply in zip(again, late, strict=True):
                replies[index] = reply
        return replies

    def call_each(
        self, keys: Sequence[str], arguments: Sequence[Arguments], *, repeatable: bool
    ) -> Core[Replies]:
        """Run the script for each of `arguments`, which are packed while other calls run."""
        if len(arguments) == 1:
            return (yield from self.call([(keys, arguments[0]())], repeatable=repeatable))

        def writes() -> Iterator[list[bytes]]:
            # The first call carries the source, so that no call is sent twice to a server that
            # lacks the script.
            make = self.by_source
            for some in arguments:
                yield [make(keys, some())]
                make = self.by_digest

        request = Pipeline(keys[0], len(arguments), writes)
        replies = yield from send_or_lost(request, repeatable=repeatable)
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                calls = [(keys, arguments[index]())]
                (replies[index],) = yield from self.call(calls, repeatable=repeatable)
        return replies


def answer_of(reply: Any, what: str) -> Any:
    """Return the reply to a script, or raise its error; `what` is as for named_error."""
    if isinstance(reply, ConnectionLost):
        raise reply.cause from None
    if isinstance(reply, Exception):
        raise named_error(reply, what)
    return reply


def named_error(error: Exception, what: str) -> Exception:
    """Return the error of a script; a ConfigurationError if the server runs no scripts.

    `what` is a subject and its verb: "claims need".
    """
    if isinstance(error, ConnectionLost) or not is_missing(error):
        return error
    named = ConfigurationError(
        f"{what} a server that runs scripts for this client; it answered {error}"
    )
    named.__cause__ = error
    return named


_SHARED = (Request, Pipeline, Pause)
"""Steps that parallel cores share."""


def in_parallel(cores: Sequence[Core[T]], most: int | None = None) -> Core[list[T]]:
    """Run several cores, `most` at once, and return their results in order.

    From a step that is no request and no pause on, a core runs alone to its end. An exception of a
    core ends the others where they are.
    """
    results: list[T] = []
    step = most or max(1, len(cores))
    for start in range(0, len(cores), step):
        some = cores[start : start + step]
        results += (yield from _side_by_side(some)) if len(some) > 1 else [(yield from some[0])]
    return results


def _side_by_side(cores: Sequence[Core[Any]]) -> Core[list[Any]]:  # noqa: C901 - one loop
    results: list[Any] = [None] * len(cores)
    # The step that each unfinished core waits for.
    steps: dict[int, Any] = {}

    def go_on(index: int, answer: Any) -> None:
        resume = cores[index].throw if isinstance(answer, Exception) else cores[index].send
        try:
            steps[index] = resume(answer)
        except StopIteration as stop:
            results[index] = stop.value
            steps.pop(index, None)

    for index in range(len(cores)):
        go_on(index, None)
    while steps:
        alone = next((i for i, one in steps.items() if not isinstance(one, _SHARED)), None)
        asking = [i for i, step in steps.items() if not isinstance(step, Pause)]
        if alone is not None:
            while alone in steps:
                try:
                    answer = yield steps[alone]
                except Exception as error:  # noqa: BLE001 - the core's to judge
                    answer = error
                go_on(alone, answer)
        elif asking:
            answers = yield from _send([steps[index] for index in asking])
            for index, answer in zip(asking, answers, strict=True):
                go_on(index, answer)
        else:
            yield Pause(max(step.seconds for step in steps.values()))
            for index in list(steps):
                go_on(index, None)
    return results


def _send(requests: Sequence[Request | Pipeline]) -> Core[Sequence[Outcome]]:
    """Send requests at once; join those for one key into one request, which is cheaper."""
    key = requests[0].key
    if len(requests) == 1 or any(
        isinstance(one, Pipeline) or one.key != key or one.commands[-1] == EXEC for one in requests
    ):
        outcomes: list[Outcome] = yield Parallel(requests)
        return outcomes
    try:
        replies = yield Request(key, [command for one in requests for command in one.commands])  # type: ignore[union-attr]  # none is a Pipeline
    except ConnectionLost as lost:
        return outcomes_of(requests, lost.replies, lost)
    return outcomes_of(requests, replies)


def writes_of(requests: Sequence[Request | Pipeline]) -> Iterator[Write]:
    """Yield the writes of requests that go to one server, as one pipeline."""
    unanswered: deque[tuple[int, int]] = deque()
    answered = written = size_of_all = size = 0
    together: list[Command] = []
    parts = chain.from_iterable(request.writes() for request in requests)
    for commands in chain(parts, (None,)):
        if commands is not None:
            together += commands
            for command in commands:
                size += sum(map(len, command)) if isinstance(command, Parts) else len(command)
            written += len(commands)
        if together and (commands is None or size >= WRITE_BYTES):
            while size_of_all > UNANSWERED_BYTES:
                answered, oldest = unanswered.popleft()
                size_of_all -= oldest
            unanswered.append((written, size))
            size_of_all += size
            yield answered, written, join_commands(together)
            together, size = [], 0


def outcomes_of(
    requests: Sequence[Request | Pipeline], replies: Replies, lost: ConnectionLost | None = None
) -> list[Outcome]:
    """Return for each request of one pipeline its replies, or the ConnectionLost."""
    outcomes: list[Outcome] = []
    end = 0
    for request in requests:
        start, end = end, end + request.num_replies
        mine = replies[start:end]
        if lost is None or end <= len(replies):
            outcomes.append(mine)
            continue
        # Without a number all commands may have been written.
        written = lost.written if lost.written is not None else end
        count = max(0, min(written, end) - start) if lost.sent else 0
        outcomes.append(ConnectionLost(lost.cause, sent=count > 0, replies=mine, written=count))
    return outcomes


def leaves_transaction(requests: Sequence[Request | Pipeline], outcomes: Sequence[Outcome]) -> bool:
    return any(
        isinstance(request, Request)
        and request.commands[-1] == EXEC
        and not isinstance(outcome, ConnectionLost)
        and not ends_transaction(request.commands, outcome)
        for request, outcome in zip(requests, outcomes, strict=True)
    )
