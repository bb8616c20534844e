"""Cores side by side: what they ask next is under way at the same time.

The requests of several cores go out as one `Parallel`: to each server as one pipeline, to all
servers at once. So they cost the round trips of the slowest. A core sees nothing of this.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .commands import EXEC, Parts, Replies, ends_transaction, join_commands
from .effects import ConnectionLost, Core, Parallel, Pause, Pipeline, Request, Step

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


def in_parallel(cores: Sequence[Core[T]], most: int | None = None) -> Core[list[T]]:
    """Carry out several cores side by side and return their results in order.

    A core that needs a connection of its own, or that does something else than ask and pause, is
    carried out to its end by itself. What a core raises ends the others where they are. With `most`
    no more than so many are under way at once.
    """
    results: list[T] = []
    step = most or max(1, len(cores))
    for start in range(0, len(cores), step):
        some = cores[start : start + step]
        results += (yield from _Cores(some).run()) if len(some) > 1 else [(yield from some[0])]
    return results


class _Cores:
    """Cores that are under way together, each with the step it waits for."""

    def __init__(self, cores: Sequence[Core[Any]]) -> None:
        self._cores = cores
        self._results: list[Any] = [None] * len(cores)
        self._steps: dict[int, Step] = {}

    def run(self) -> Core[list[Any]]:
        for index in range(len(self._cores)):
            self._go_on(index, None)
        while steps := self._steps:
            alone = next((i for i, step in steps.items() if not _may_share(step)), None)
            asking = [i for i, step in steps.items() if not isinstance(step, Pause)]
            if alone is not None:
                yield from self._run_alone(alone)
            elif asking:
                # The requests are all of one kind here, as `alone` is None.
                requests = tuple(steps[i] for i in asking)
                answers = yield from _send(requests)  # type: ignore[arg-type]
                for index, answer in zip(asking, answers, strict=True):
                    self._go_on(index, answer)
            else:
                pauses = [step.seconds for step in steps.values() if isinstance(step, Pause)]
                yield Pause(max(pauses))
                for index in list(steps):
                    self._go_on(index, None)
        return self._results

    def _run_alone(self, index: int) -> Core[None]:
        while index in self._steps:
            try:
                answer = yield self._steps[index]
            except ConnectionLost as lost:
                answer = lost
            self._go_on(index, answer)

    def _go_on(self, index: int, answer: Any) -> None:
        core = self._cores[index]
        try:
            if isinstance(answer, ConnectionLost):
                self._steps[index] = core.throw(answer)
            else:
                self._steps[index] = core.send(answer)
        except StopIteration as stop:
            self._results[index] = stop.value
            self._steps.pop(index, None)


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


def _may_share(step: Step) -> bool:
    return isinstance(step, (Pipeline, Pause)) or (isinstance(step, Request) and not step.hold)


def writes_of(
    requests: Sequence[Request | Pipeline], sent: list[Command] | None = None
) -> Iterator[Write]:
    """Yield the writes of requests that go to one server, as one pipeline; note them in `sent`."""
    unanswered: deque[tuple[int, int]] = deque()
    answered = written = size_of_all = size = 0
    together: list[Command] = []
    parts = chain.from_iterable(
        request.writes if isinstance(request, Pipeline) else (request.commands,)
        for request in requests
    )
    for commands in chain(parts, (None,)):
        if commands is not None:
            together += commands
            for command in commands:
                size += sum(map(len, command)) if isinstance(command, Parts) else len(command)
            written += len(commands)
            if sent is not None:
                sent += commands
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
    """Return what came of each of the requests that went as one pipeline.

    That is its replies, or, if `lost` cut these off, a ConnectionLost with those that came.
    """
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


def answered_of(
    requests: Sequence[Request | Pipeline], outcomes: Sequence[Outcome], sent: Sequence[Command]
) -> Iterator[tuple[str, Sequence[Command], Replies]]:
    """Yield key, commands (as `writes_of` noted them) and replies of each answered request."""
    end = 0
    for request, outcome in zip(requests, outcomes, strict=True):
        start, end = end, end + request.num_replies
        if end <= len(sent) and not isinstance(outcome, ConnectionLost):
            yield request.key, sent[start:end], outcome


def leaves_transaction(requests: Sequence[Request | Pipeline], outcomes: Sequence[Outcome]) -> bool:
    """Return whether MULTI may be pending on the connection that the requests went over."""
    return any(
        isinstance(request, Request)
        and request.commands[-1] == EXEC
        and not isinstance(outcome, ConnectionLost)
        and not ends_transaction(request.commands, outcome)
        for request, outcome in zip(requests, outcomes, strict=True)
    )
