"""The strategy "lock": sets the bits of an item under a lock for that item.

Locks are striped by item, 1024 for each shard. Two workers wait for each other only if they add the
same item (or, one time in a thousand, another item of its stripe). No worker waits while it holds
a lock, so there is no deadlock, whatever the order of the items.

The update is a script that first checks the locks. A holder that slept through its lease writes
nothing.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any

import redis.exceptions
from redis.exceptions import RedisError

from bloomlock.clock import boot_clock
from bloomlock.commands import Script
from bloomlock.descriptor import DISCARDED
from bloomlock.effects import NO_LIMIT, ConnectionLost, Core, Limit, Pause, RunAfter
from bloomlock.errors import LockTimeoutError
from bloomlock.hashing import pick
from bloomlock.keys import LockKeys, discards_key, stripe_keys
from bloomlock.locks.protocol.steps import ACQUIRE, RELEASE, Granted, LockRequest, LockSteps
from bloomlock.locks.protocol.waiting import CLEANUP_SECONDS, GRACE_SECONDS, OUTAGE_PAUSE, Attempt
from bloomlock.sizing import check_seconds, check_whole

from .base import Segment, Strategy
from .bits import TransactionStrategy
from .script import ADD, read_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Segments, Shard


logger = logging.getLogger("bloomlock.locks")

STRIPES = 1024
LEASE_MS = 10_000
PASSING = (
    redis.exceptions.AskError,  # MovedError is a kind of it
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,  # MasterDownError is a kind of it
)
"""Refusals of a cluster that moves slots or fails over; any other refusal is final."""
UPDATE = Script("locked", "header", "slices", "items")


class LockStrategy(Strategy):
    """Three round trips for an add, one to test; exact.

    Args:
        timeout: Seconds to wait for the lock of an item.
        stripes: Locks for each shard.

    Raises:
        ConfigurationError: If a parameter is not usable.
    """

    name = "lock"
    is_exclusive = True

    def __init__(self, *, timeout: float = 30.0, stripes: int = STRIPES) -> None:
        self._timeout = check_seconds("timeout", timeout, least=0.0)
        self._stripes = check_whole("stripes", stripes, 1, 2**31, "from 1 on")
        self._transaction = TransactionStrategy()

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        if not write:
            return (yield from self._transaction.ask_shard(shard, items, write=False))
        places: dict[LockKeys, list[int]] = {}
        for index, item in enumerate(items):
            # Every client computes the same stripe for an item. It is the first offset. The sum of
            # the offsets would use only one of four stripes for some k.
            stripe = shard.hasher.locate(item)[1][0] % self._stripes
            places.setdefault(stripe_keys(shard.key, stripe), []).append(index)
        update = _Update(shard, items, places)
        yield from self._carry_out(update)
        return [done for done in update.results if done is not None]

    def _carry_out(self, update: _Update) -> Core[None]:
        until = boot_clock() + self._timeout
        while wanted := sorted(update.waiting):
            asking = LockRequest(secrets.token_urlsafe(12).encode(), LEASE_MS)
            taken = wanted
            queue: list[Any] = [None]
            try:
                yield Limit(until + GRACE_SECONDS, queue)
                taken = yield from _try_to_take(wanted, asking)
                if not taken:
                    # Nothing is held while this waits.
                    taken = yield from self._wait_for(wanted[0], asking, until)
                yield NO_LIMIT
                if taken:
                    yield from update.carry_out(taken, asking.token)
                # Without an update the lock was lost as soon as it was held, and is acquired again.
                elif boot_clock() >= until:
                    error = LockTimeoutError(f"no lock for an item within {self._timeout:g} s")
                    update.answer(wanted, Segment(1, error=error))
                    return
            except RedisError as error:
                if isinstance(error, PASSING) and boot_clock() < until:
                    yield Pause(OUTAGE_PAUSE)
                else:
                    update.answer(wanted, Segment(1, error=error))
            except ConnectionLost as lost:
                # Only locks have been requested so far, so no item was added.
                update.answer(wanted, Segment(1, error=lost.cause))
                seconds = min(CLEANUP_SECONDS, until + GRACE_SECONDS - boot_clock())
                yield RunAfter(_release_all(taken, asking), queue, seconds)
                return
            yield NO_LIMIT
            yield from _release_all(taken, asking)

    def _wait_for(self, keys: LockKeys, asking: LockRequest, until: float) -> Core[list[LockKeys]]:
        attempt = Attempt(LockSteps(keys), asking, until, boot_clock)
        try:
            return [keys] if (yield from attempt.run()) else []
        except RedisError:
            yield from attempt.leave_behind()
            raise


class _Update:
    """Items that wait for their locks, and the answers so far.

    Attributes:
        results: For each item its answer, or None.
        waiting: The locks of items without an answer.
    """

    def __init__(
        self, shard: Shard, items: Sequence[bytes], places: dict[LockKeys, list[int]]
    ) -> None:
        self.results: list[Segment | None] = [None] * len(items)
        self.waiting = set(places)
        self._places = places
        self._shard = shard
        self._items = items

    def answer(self, locks: list[LockKeys], segment: Segment) -> None:
        indices = [index for keys in locks for index in self._places[keys]]
        for place, index in enumerate(indices):
            missing = None if segment.missing is None else segment.missing[place : place + 1]
            self.results[index] = segment._replace(rows=1, missing=missing)
        self.waiting.difference_update(locks)

    def carry_out(self, locks: list[LockKeys], token: bytes) -> Core[None]:
        """Update the items of held locks; if one is no longer held, all of them keep waiting."""
        shard, state = self._shard, self._shard.slices
        some = pick(self._items, [index for lock in locks for index in self._places[lock]])
        keys = [shard.key, discards_key(shard.key), *(lock.lock for lock in locks)]
        places = state.hasher.packed(some)
        arguments = [shard.headers[0], ADD, state.layout, places, token]
        (reply,) = yield from UPDATE.call([(keys, arguments)], repeatable=False)
        if isinstance(reply, PASSING):
            raise reply
        if reply != []:
            # None: items were discarded. A filter refuses those with this strategy.
            refused = Segment(len(some), shard.header | DISCARDED)
            self.answer(locks, read_reply(shard, reply, len(some)) or refused)


def _try_to_take(locks: list[LockKeys], request: LockRequest) -> Core[list[LockKeys]]:
    answers = yield from ACQUIRE.run_all([(lock, request) for lock in locks])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [lock for lock, one in zip(locks, answers, strict=True) if isinstance(one, Granted)]


def _release_all(locks: Sequence[LockKeys], request: LockRequest) -> Core[None]:
    """Release locks; a failure is only logged, because the leases expire."""
    if locks:
        answers = yield from RELEASE.run_all([(lock, request) for lock in locks])
        error = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if error is not None:
            logger.debug("releasing %d locks failed, they expire: %s", len(locks), error)
