"""Bits set under a lock for the item: for work that one command or script cannot reach.

Locks are striped by item, 1024 for each shard, so two workers wait for each other only over the
same item (or, one time in a thousand, another of its stripe). No worker ever waits while it
holds a lock, so there is no deadlock, whatever order a batch comes in.

The update under our own locks is a script that looks whether they still are held, so a holder that
slept through its lease writes nothing. Any other lock can take their place; nothing is checked then
in the update, a transaction. Its answers stay exact; that no other client comes in between is as
true as that lock makes it.
"""

from __future__ import annotations

import logging
import secrets
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import redis.exceptions
from redis.exceptions import RedisError

from bloomlock.effects import (
    NO_LIMIT,
    Behind,
    Clock,
    ConnectionLost,
    Core,
    Limit,
    Pause,
    Within,
)
from bloomlock.errors import ConfigurationError, LockTimeoutError
from bloomlock.hashing import pick
from bloomlock.keys import LockKeys, stripe_keys
from bloomlock.locks.protocol.steps import (
    ACQUIRE,
    RELEASE,
    AcquireRequest,
    Granted,
    LockSteps,
    ReleaseRequest,
)
from bloomlock.locks.protocol.waiting import CLEANUP_SECONDS, GRACE_SECONDS, OUTAGE_PAUSE, Attempt
from bloomlock.scripts import Script

from .base import Segment, Strategy
from .lua import arguments_of, segment_of
from .setbit import TransactionStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.hashing import Hasher

    from .base import Shard


logger = logging.getLogger("bloomlock.locks")

STRIPES = 1024
LEASE_MS = 10_000
PASSING = (
    redis.exceptions.AskError,  # MovedError is a kind of it
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)
"""Refusals of a cluster that moves slots or fails over; any other is the answer."""
UPDATE = Script("locked", "bits")


class LockStrategy(Strategy):
    """Three round trips for an add, one to test; exact.

    Args:
        factory: Gives a lock by name: a context manager, entered before the bits of an item are
            set and left afterwards (for AsyncBloomFilter an asynchronous one). The name is
            that of one stripe of items, such as "bloomlock:{pages}:lock:17". None: our own locks.
        timeout: Seconds to wait for the lock of an item; a factory's locks have their own.
        stripes: Locks for each shard.

    Raises:
        ConfigurationError: If a parameter is not usable.

    >>> import threading
    >>> from collections import defaultdict
    >>> locks = defaultdict(threading.Lock)
    >>> strategy = LockStrategy(locks.__getitem__)
    """

    name = "lock"
    is_exclusive = True

    def __init__(
        self,
        factory: Callable[[str], Any] | None = None,
        *,
        timeout: float = 30.0,
        stripes: int = STRIPES,
    ) -> None:
        if factory is not None and not callable(factory):
            raise ConfigurationError(f"factory must be a function or None, not {factory!r:.80}")
        if not isinstance(timeout, (float, Real)) or not timeout >= 0:
            raise ConfigurationError(
                f"timeout must be a number of seconds from 0 on, not {timeout!r:.80}"
            )
        if not isinstance(stripes, (int, Integral)) or stripes < 1:
            raise ConfigurationError(f"stripes must be a whole number from 1 on, not {stripes!r}")
        # Locks of a factory are taken one by one in a batch, side by side by calls of their own.
        self.may_share_calls = factory is None
        self._factory = factory
        self._timeout = float(timeout)
        self._stripes = int(stripes)
        self._missing: set[str] = set()
        self._transaction = TransactionStrategy()

    def ask_shard(
        self, shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.ask_shard; a test needs no lock."""
        if not write:
            return (yield from self._transaction.ask_shard(shard, hasher, items, write=False))
        places: dict[LockKeys, list[int]] = {}
        for index, item in enumerate(items):
            # The same item has the same stripe everywhere. The sum of the offsets would leave three
            # of four stripes out for some k: its terms have common factors with their number.
            stripe = hasher.locate(item)[1][0] % self._stripes
            places.setdefault(stripe_keys(shard.key, stripe), []).append(index)
        update = _Update(shard, hasher, items, places)
        if self._factory is not None:
            yield from self._under_foreign_locks(update, self._factory)
        else:
            yield from self._under_own_locks(update)
        return [done for done in update.results if done is not None]

    def _under_foreign_locks(self, update: _Update, factory: Callable[[str], Any]) -> Core[None]:
        for keys in sorted(update.waiting):
            # Noted here, as leaving the lock may fail after it.
            done: list[Segment] = []
            try:
                yield Within(factory(keys.lock), self._carry_out(update.part([keys]), done))
            except Exception as error:  # noqa: BLE001 - whatever it is, answers may be known already
                if not done:
                    # The next lock of a service that gives none now would be waited for as long.
                    update.answer(sorted(update.waiting), Segment(1, error=error))
                    return
                if done[0].error is None:
                    # It is not known whether it kept others out until the bits were set.
                    lost = ConnectionLost(error, sent=True, replies=[])
                    done = [Segment(done[0].rows, error=lost)]
            update.answer([keys], done[0])

    def _carry_out(
        self, part: tuple[Shard, Hasher, list[bytes]], done: list[Segment]
    ) -> Core[None]:
        done += yield from self._transaction.ask_shard(*part, write=True)

    def _under_own_locks(self, update: _Update) -> Core[None]:
        clock = yield Clock()
        until = clock() + self._timeout
        while wanted := sorted(update.waiting):
            asking = AcquireRequest(secrets.token_urlsafe(12).encode(), LEASE_MS)
            taken = wanted
            line: list[Any] = [None]
            try:
                yield Limit(until + GRACE_SECONDS, line)
                taken = yield from _try_to_take(wanted, asking)
                if not taken:
                    # Nothing is held while this waits.
                    taken = yield from self._wait_for(wanted[0], asking, until, clock)
                yield NO_LIMIT
                if taken:
                    yield from update.carry_out(taken, asking.token)
                # One that was lost as soon as it was got is asked for again.
                elif clock() >= until:
                    error = LockTimeoutError(f"no lock for an item within {self._timeout:g} s")
                    update.answer(wanted, Segment(1, error=error))
                    return
            except RedisError as error:
                if isinstance(error, PASSING) and clock() < until:
                    yield Pause(OUTAGE_PAUSE)
                else:
                    update.answer(wanted, Segment(1, error=error))
            except ConnectionLost as lost:
                # Nothing but locks was asked for so far.
                update.answer(wanted, Segment(1, error=lost.cause))
                seconds = min(CLEANUP_SECONDS, until + GRACE_SECONDS - clock())
                yield Behind(_release_all(taken, asking.token), line, seconds)
                return
            yield NO_LIMIT
            yield from _release_all(taken, asking.token)

    def _wait_for(
        self, keys: LockKeys, asking: AcquireRequest, until: float, clock: Callable[[], float]
    ) -> Core[list[LockKeys]]:
        attempt = Attempt(LockSteps(keys, self._missing), asking, until, clock)
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
        self,
        shard: Shard,
        hasher: Hasher,
        items: Sequence[bytes],
        places: dict[LockKeys, list[int]],
    ) -> None:
        self.results: list[Segment | None] = [None] * len(items)
        self.waiting = set(places)
        self._places = places
        self._shard = shard
        self._hasher = hasher
        self._items = items

    def part(self, locks: list[LockKeys]) -> tuple[Shard, Hasher, list[bytes]]:
        """Return the shard, its hasher, and the items of these locks."""
        indices = [index for keys in locks for index in self._places[keys]]
        return self._shard, self._hasher, pick(self._items, indices)

    def answer(self, locks: list[LockKeys], segment: Segment) -> None:
        """Note the answer to the items of these locks."""
        indices = [index for keys in locks for index in self._places[keys]]
        for place, index in enumerate(indices):
            missing = None if segment.missing is None else segment.missing[place : place + 1]
            self.results[index] = segment._replace(rows=1, missing=missing)
        self.waiting.difference_update(locks)

    def carry_out(self, locks: list[LockKeys], token: bytes) -> Core[None]:
        """Update the items of locks that are held; all wait on where one is not held any more."""
        shard, hasher, some = self.part(locks)
        keys = [shard.key, *(lock.lock for lock in locks)]
        arguments = [*arguments_of(shard, hasher, some, write=True), token]
        (reply,) = yield from UPDATE.call([(keys, arguments)], repeatable=False)
        if isinstance(reply, PASSING):
            raise reply
        if reply != []:
            self.answer(locks, segment_of(reply, len(some)))


def _try_to_take(locks: list[LockKeys], request: AcquireRequest) -> Core[list[LockKeys]]:
    """Try once to take each lock, in one round trip; return those held then."""
    answers = yield from ACQUIRE.run_all([(lock, request) for lock in locks])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [lock for lock, one in zip(locks, answers, strict=True) if isinstance(one, Granted)]


def _release_all(locks: Sequence[LockKeys], token: bytes) -> Core[None]:
    """Give up locks and hand them on; a failure is logged, because the leases end by themselves."""
    if locks:
        answers = yield from RELEASE.run_all([(lock, ReleaseRequest(token)) for lock in locks])
        error = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if error is not None:
            logger.debug("releasing %d locks failed, they expire: %s", len(locks), error)
