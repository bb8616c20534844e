"""How a core gets a step done: sent again where that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import redis.exceptions

from .effects import ConnectionLost, Core, Elsewhere, Pause, Pipeline, Request, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from .commands import Replies

T = TypeVar("T")

RETRY_PAUSES = (0.0, 0.2)
"""Seconds before the second and third try of a request that may be repeated."""


def deliver(
    request: Request | Pipeline | Transaction,
    *,
    repeatable: bool,
    lost: ConnectionLost | None = None,
) -> Core[Replies]:
    """Send a request, again if nothing was sent or it is `repeatable`; `lost` is a first try.

    A time-out has already waited long and is followed by one more try only.
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


def collect(
    request: Request | Pipeline, *, repeatable: bool, lost: ConnectionLost | None = None
) -> Core[Replies]:
    """Like `deliver`, but each reply that did not come is a ConnectionLost."""
    try:
        return (yield from deliver(request, repeatable=repeatable, lost=lost))
    except ConnectionLost as failed:
        count = request.num_replies
        written = count if failed.written is None else failed.written
        unsent = ConnectionLost(failed.cause, sent=False, replies=[])
        unknown = [failed] * (written - len(failed.replies))
        return [*failed.replies, *unknown, *[unsent] * (count - written)]


def ask(key: str, *commands: bytes) -> Core[Replies]:
    """Send commands that may be repeated; raise an error that is a reply, or why none came."""
    try:
        return check((yield from deliver(Request(key, commands), repeatable=True)))
    except ConnectionLost as lost:
        raise lost.cause from None


def elsewhere(run: Callable[[Core[T]], Any], core: Core[T]) -> Core[T]:
    answer: T = yield Elsewhere(run, core)
    return answer


def check(replies: Replies) -> Replies:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
