"""Cores side by side: what they ask next is under way at the same time.

The requests of several cores go out as one `Parallel`: to each server as one pipeline, to all
servers at once. So they cost the round trips of the slowest. A core sees nothing of this.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .commands import EXEC, Parts, Replies, ends_transaction, join_commands
from .effects import ConnectionLost, Core, Parallel, Pause, Pipeline, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .commands import Command
    from .effects import Outcome

T = TypeVar("T")
Write: TypeAlias = "tuple[int, int, list[bytes | memoryview]]"
"""Replies to read before it, commands written with it, and its bytes."""

WRITE_BYTES = 64 * 1024
"""Commands of different requests that are smaller than this go out in one write."""

UNANSWERED_BYTES = 300_000
"""Commands of a pipeline without a reply when the next are made: 8000 operations of BITFIELD.

What is unanswered when a connection is lost is unknown, so these are few.
The replies to them have to fit into the buffers on the way, or a server that cannot send would not
read either. They are a seventh of that for bits, and less for packed items."""


_SHARED = (Request, Pipeline, Pause)
"""Steps of several cores that become one."""


def in_parallel(cores: Sequence[Core[T]], most: int | None = None) -> Core[list[T]]:
    """Carry out several cores, `most` at once, and return their results in order.

    A core that does something else than send requests and pause is carried out to its end by
    itself. What a core raises ends the others where they are.
    """
    results: list[T] = []
    step = most or max(1, len(cores))
    for start in range(0, len(cores), step):
        some = cores[start : start + step]
        results += (yield from _side_by_side(some)) if len(some) > 1 else [(yield from some[0])]
    return results


def _side_by_side(cores: Sequence[Core[Any]]) -> Core[list[Any]]:  # noqa: C901 - one loop
    results: list[Any] = [None] * len(cores)
    # Of each core that is under way the step it waits for.
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
    """Send requests at once; those for one key as one, which costs the client less."""
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
        # Without a number all of what was to be written may have been.
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
