"""How a core gets a step done: sent again where that is safe, or in another way.

Some steps can be carried out in several ways: by a native command, by a script, by a transaction.
Such a step is a sequence of `Way`s, best first, and `run_ways` carries it out for any number of
items: it skips ways that the server is known not to allow, hands the items that a way refuses to
the next one, and notes what the server lacks in a set that its caller keeps for each client.

    ways = (Way("DELIFEQ", by_command), Way("scripts", by_script), Way("", under_watch))
    answers = yield from run_ways(ways, items, missing)  # errors stand in the list, as values
    answer = yield from run_way(ways, item, missing)     # for one item; raises its error
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import redis.exceptions

from .effects import ConnectionLost, Core, Elsewhere, Pause, Pipeline, Request, Step
from .refusals import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .commands import Replies

T = TypeVar("T")
Item = TypeVar("Item")

RETRY_PAUSES = (0.0, 0.2)
"""Seconds before the second and third try of a request that may be repeated."""


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
        answer = way.read(replies)
        if not isinstance(answer, Exception):
            return answer
        answers: list[T | Exception] = [answer]
        (answer,) = yield from _hand_on(ways, (item,), answers, missing)
    if isinstance(answer, Exception):
        raise answer
    return answer
