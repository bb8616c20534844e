"""Many locks of one slot at once, watched while they are used.

WATCH makes the fence part of the update: EXEC does nothing if a watched lock was lost since its
holder was last seen in it, so a holder that slept through its lease cannot write.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from bloomlock.effects import (
    ConnectionLost,
    Core,
    Request,
    Way,
    check,
    deliver,
    encode_command,
    run_way,
    run_ways,
)

from .model import AcquireRequest, ReleaseRequest
from .steps import ACQUIRE, RELEASE, RELEASE_EXCLUSIVE, SCRIPTS, Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import LockKeys

logger = logging.getLogger("bloomlock.locks")


class Taking(NamedTuple):
    """Locks to take at once, each by the same request; see `take_and_watch`."""

    locks: Sequence[LockKeys]
    request: AcquireRequest
    missing: set[str]


def take_and_watch(
    locks: Sequence[LockKeys], request: AcquireRequest, missing: set[str]
) -> Core[list[LockKeys]]:
    """Try once to take each lock, and watch those held then; one round trip if all are free.

    The connection is kept for the transaction that follows; see `unwatch`.

    Returns:
        The locks held, in order.

    Raises:
        ConnectionLost, redis.exceptions.RedisError: If the server cannot be asked.
    """
    return (yield from run_way(_WAYS, Taking(locks, request, missing), missing))


def _take_and_watch(items: Sequence[Taking]) -> Core[list[list[LockKeys] | Exception]]:
    [(locks, asked, _)] = items
    take = [ACQUIRE.by_digest(Call(lock, asked)) for lock in locks]
    request = Request(locks[0].lock, [*take, *_watching(locks)], hold=True)
    replies = yield from deliver(request, repeatable=True)
    error = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if error is None and (held := _held(locks, replies, asked.token)) == list(locks):
        return [held]
    yield from unwatch(locks[0].lock)
    if error is not None:
        return [error]
    return [(yield from watch(held, asked.token)) if held else []]


def _take_then_watch(items: Sequence[Taking]) -> Core[list[list[LockKeys] | Exception]]:
    [(locks, request, missing)] = items
    calls = [Call(lock, request) for lock in locks]
    for answer in (yield from run_ways(ACQUIRE.ways, calls, missing)):
        if isinstance(answer, Exception):
            return [answer]
    return [(yield from watch(locks, request.token))]


# Any error is refusal enough: taken one after the other, locks also find another node of a cluster.
_WAYS = (
    Way(SCRIPTS, _take_and_watch, lambda error: isinstance(error, ResponseError)),
    Way("", _take_then_watch),
)


def watch(locks: Sequence[LockKeys], token: bytes) -> Core[list[LockKeys]]:
    """Watch locks and return those held with `token`; one round trip, as `take_and_watch`.

    If some are not held, only the others are watched, by another round trip: what strangers do
    with theirs must not stop a transaction.
    """
    held = list(locks)
    while held:
        request = Request(held[0].lock, _watching(held), hold=True)
        replies = check((yield from deliver(request, repeatable=True)))
        seen = _held(held, replies, token)
        if seen == held:
            break
        yield from unwatch(held[0].lock)
        held = seen
    return held


def unwatch(key: str) -> Core[None]:
    """Give the connection back that `watch` kept."""
    try:
        yield Request(key, [encode_command("UNWATCH")])
    except ConnectionLost:
        return


def release_all(locks: Sequence[LockKeys], token: bytes, missing: set[str]) -> Core[None]:
    """Give up locks and hand them on; one round trip if no client waits.

    Never raises what the server or the network did: the leases end by themselves.
    """
    calls = [Call(lock, ReleaseRequest(token)) for lock in locks]
    if not calls:
        return
    answers = yield from run_ways(RELEASE_EXCLUSIVE, calls, missing)
    awaited = [
        call
        for call, answer in zip(calls, answers, strict=True)
        if not isinstance(answer, Exception) and answer[1]
    ]
    if awaited:
        answers += yield from run_ways(RELEASE.ways, awaited, missing)
    error = next((answer for answer in answers if isinstance(answer, Exception)), None)
    if error is not None:
        logger.debug("releasing %d locks failed, they expire: %s", len(locks), error)


def _watching(locks: Sequence[LockKeys]) -> list[bytes]:
    gets = [encode_command("GET", lock.lock) for lock in locks]
    return [encode_command("WATCH", *(lock.lock for lock in locks)), *gets]


def _held(locks: Sequence[LockKeys], replies: Sequence[object], token: bytes) -> list[LockKeys]:
    values = replies[len(replies) - len(locks) :]
    return [lock for lock, value in zip(locks, values, strict=True) if value == token]
