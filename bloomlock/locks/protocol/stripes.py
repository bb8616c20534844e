"""Many locks of one slot at once, watched while they are used.

WATCH makes the fence part of the update: EXEC does nothing if a watched lock was lost since its
holder was last seen in it, so a holder that slept through its lease cannot write.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.effects import (
    ConnectionLost,
    Core,
    Request,
    check,
    collect,
    deliver,
    encode_command,
)

from .abilities import lacks_command
from .state import AcquireRequest, ReleaseRequest
from .steps import ACQUIRE, LockSteps, acquire_all, arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import LockKeys

    from .abilities import Abilities

logger = logging.getLogger("bloomlock.locks")


def take_and_watch(
    locks: Sequence[LockKeys], asking: AcquireRequest, abilities: Abilities
) -> Core[list[LockKeys]]:
    """Try once to take each lock, and watch those held now; one round trip if all are free.

    The connection is kept for the transaction that follows; see `unwatch`.

    Returns:
        The locks held, in order.

    Raises:
        ConnectionLost, redis.exceptions.RedisError: If the server cannot be asked.
    """
    if abilities.scripts:
        take = [ACQUIRE.by_digest(lock, arguments(asking)) for lock in locks]
        request = Request(locks[0].lock, [*take, *_watching(locks)], hold=True)
        replies = yield from deliver(request, repeatable=True)
        if not any(isinstance(reply, Exception) for reply in replies):
            held = _held(locks, replies, asking.token)
            if held == list(locks):
                return held
            yield from unwatch(locks[0].lock)
            return (yield from watch(held, asking.token)) if held else []
        yield from unwatch(locks[0].lock)
        abilities.scripts = not any(lacks_command(reply) for reply in replies)
    yield from acquire_all([(lock, asking) for lock in locks], abilities)
    return (yield from watch(locks, asking.token))


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


def release_all(locks: Sequence[LockKeys], token: bytes, abilities: Abilities) -> Core[None]:
    """Give up locks and hand them on; one round trip if nobody waits.

    Never raises what the server or the network did: the leases end by themselves.
    """
    try:
        left = list(locks)
        if not left:
            return
        if (name := abilities.compare_and_delete) is not None:
            condition = (token,) if name == "DELIFEQ" else ("IFEQ", token)
            commands = []
            for lock in locks:
                commands.append(encode_command(name, lock.lock, *condition))
                commands.append(encode_command("EXISTS", lock.queue))
            replies = yield from collect(Request(locks[0].lock, commands), repeatable=True)
            if lacks_command(replies[0]):
                abilities.missing_delete()
                return (yield from release_all(locks, token, abilities))
            check(replies)
            left = [lock for lock, queue in zip(locks, replies[1::2], strict=True) if queue]
        for lock in left:
            steps = LockSteps(lock, abilities)
            yield from steps.release(ReleaseRequest(token), waiters=True)
    except (ConnectionLost, RedisError) as error:
        logger.debug("releasing %d locks failed, they expire: %s", len(locks), error)


def _watching(locks: Sequence[LockKeys]) -> list[bytes]:
    gets = [encode_command("GET", lock.lock) for lock in locks]
    return [encode_command("WATCH", *(lock.lock for lock in locks)), *gets]


def _held(locks: Sequence[LockKeys], replies: Sequence[object], token: bytes) -> list[LockKeys]:
    values = replies[len(replies) - len(locks) :]
    return [lock for lock, value in zip(locks, values, strict=True) if value == token]
