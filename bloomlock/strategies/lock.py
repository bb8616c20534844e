"""Bits set under a lock for the item: for work that one command or script cannot reach.

Locks are striped by item, 1024 for each shard, so two workers wait for each other only over the
same item (or, one time in a thousand, another of its stripe). No worker ever waits while it
holds a lock, so there is no deadlock, whatever order a batch comes in.

The update is a transaction. With our own locks its connection watches them, and it is carried out
only if they still are held, so a holder that slept through its lease writes nothing. Any other
lock can take their place; nothing is checked in the update then. The answers stay exact, because
it is one transaction; that no other client comes in between is as true as that lock makes it.
"""

from __future__ import annotations

import logging
import secrets
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import redis.exceptions
from redis.exceptions import RedisError, ResponseError, WatchError

from bloomlock.commands import UNWATCH, encode_command
from bloomlock.delivery import check, collect, deliver
from bloomlock.effects import (
    NO_LIMIT,
    Behind,
    Clock,
    ConnectionLost,
    Core,
    EnterContext,
    ExitContext,
    Limit,
    Pause,
    Request,
)
from bloomlock.errors import ConfigurationError, LockTimeoutError
from bloomlock.keys import LockKeys, stripe_keys
from bloomlock.locks.protocol.steps import ACQUIRE, RELEASE, LockSteps
from bloomlock.locks.protocol.values import AcquireRequest, ReleaseRequest
from bloomlock.locks.protocol.waiting import CLEANUP_SECONDS, GRACE_SECONDS, OUTAGE_PAUSE, Attempt

from .base import Segment, Strategy
from .setbit import TransactionStrategy, decode_transaction, encode_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


class LockStrategy(Strategy):
    """Three round trips for an add, one to test; exact.

    Args:
        factory: Gives a lock by name: a context manager, entered before the bits of an item are
            set and left afterwards (for AsyncBloomFilter an asynchronous one). The name is
            that of one stripe of items, such as "bloomlock:{pages}:lock:17". None: our own locks.
        timeout: Seconds to wait for the lock of an item; a factory's locks have their own.
        stripes: Locks for each shard.
        new_token: Gives a token that no other client has.

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
        new_token: Callable[[], bytes] = lambda: secrets.token_urlsafe(12).encode(),
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
        self._new_token = new_token
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

    def shards_at_once(self, shard: Shard, *, write: bool) -> int | None:  # noqa: ARG002
        """See Strategy.shards_at_once; an update watches its locks on a connection of its own."""
        return 1 if write else None

    def _under_foreign_locks(self, update: _Update, factory: Callable[[str], Any]) -> Core[None]:
        for keys in sorted(update.waiting):
            failed = yield from _enter(factory, keys.lock)
            if failed is not None:
                # The next lock of a service that gives none now would be waited for just as long.
                update.fail(sorted(update.waiting), failed)
                return
            aborted = yield from update.carry_out([keys])
            if aborted is not None:
                update.fail([keys], aborted)
            failed = yield ExitContext()
            if failed is not None and aborted is None:
                # It is not known whether it kept others out until the bits were set.
                update.fail([keys], ConnectionLost(failed, sent=True, replies=[]))

    def _under_own_locks(self, update: _Update) -> Core[None]:
        clock = yield Clock()
        until = clock() + self._timeout
        while wanted := sorted(update.waiting):
            asking = AcquireRequest(self._new_token(), LEASE_MS)
            taken = wanted
            line: list[Any] = [None]
            try:
                yield Limit(until + GRACE_SECONDS, line)
                taken = yield from _take_and_watch(wanted, asking)
                if not taken:
                    taken = yield from self._wait_for(wanted[0], asking, until, clock)
                yield NO_LIMIT
                # One that was lost as soon as it was got is asked for again.
                if not taken and clock() >= until:
                    error = LockTimeoutError(f"no lock for an item within {self._timeout:g} s")
                    update.fail(wanted, error)
                    return
                yield from update.carry_out_watched(taken, asking.token)
            except RedisError as error:
                if isinstance(error, PASSING) and clock() < until:
                    yield Pause(OUTAGE_PAUSE)
                else:
                    update.fail(wanted, error)
            except ConnectionLost as lost:
                # Nothing but locks was asked for so far.
                update.fail(wanted, lost.cause)
                seconds = min(CLEANUP_SECONDS, until + GRACE_SECONDS - clock())
                yield Behind(_release_all(taken, asking.token), line, seconds)
                return
            yield NO_LIMIT
            yield from _release_all(taken, asking.token)

    def _wait_for(
        self, keys: LockKeys, asking: AcquireRequest, until: float, clock: Callable[[], float]
    ) -> Core[list[LockKeys]]:
        """Stand in the queue of one lock; nothing is held meanwhile."""
        steps = LockSteps(keys, self._missing)
        attempt = Attempt(steps, asking, until, clock)
        try:
            got = yield from attempt.run()
        except RedisError:
            yield from attempt.leave_behind()
            raise
        return (yield from _watch([keys], asking.token)) if got else []


def _enter(factory: Callable[[str], Any], name: str) -> Core[Exception | None]:
    """Enter the lock of a name; return the exception that entering raised, or None."""
    try:
        manager = factory(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, answers may be known already
        return error
    failed: Exception | None = yield EnterContext(manager)
    return failed


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

    def fail(self, locks: Iterable[LockKeys], error: Exception) -> None:
        """Answer the items of these locks with an error."""
        for keys in locks:
            self.waiting.discard(keys)
            for index in self._places[keys]:
                self.results[index] = Segment(1, error=error)

    def carry_out_watched(self, locks: list[LockKeys], token: bytes) -> Core[None]:
        """Update the items of locks that are held and watched; where one is lost they wait on.

        An update that WATCH refused has not happened.
        """
        while locks and (aborted := (yield from self.carry_out(locks))) is not None:
            if not isinstance(aborted, WatchError):
                raise aborted
            locks = yield from _watch(locks, token)

    def carry_out(self, locks: list[LockKeys]) -> Core[RedisError | None]:
        """Update the items of these locks, or return why EXEC did nothing and may do it later."""
        indices = [index for keys in locks for index in self._places[keys]]
        some = [self._items[index] for index in indices]
        commands = encode_transaction(self._shard, self._hasher, some, write=True)
        replies = yield from collect(Request(self._shard.key, commands), repeatable=False)
        segment = decode_transaction(replies, len(indices))
        if isinstance(segment.error, (WatchError, *PASSING)):
            return segment.error
        for place, index in enumerate(indices):
            missing = None if segment.missing is None else segment.missing[place : place + 1]
            self.results[index] = segment._replace(rows=1, missing=missing)
        self.waiting.difference_update(locks)
        return None


def _take_and_watch(locks: Sequence[LockKeys], request: AcquireRequest) -> Core[list[LockKeys]]:
    """Try once to take each lock, and watch those held then; one round trip if all are free.

    WATCH makes the fence part of the update: EXEC does nothing if a watched lock was lost since its
    holder was last seen in it, so a holder that slept through its lease cannot write. The
    connection is kept for the transaction that follows.
    """
    take = [ACQUIRE.command(lock, request) for lock in locks]
    asked = Request(locks[0].lock, [*take, *_watching(locks)], hold=True)
    replies = yield from deliver(asked, repeatable=True)
    held = list(locks)
    error = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if error is None and (held := _held(locks, replies, request.token)) == list(locks):
        return held
    yield from _unwatch(locks[0].lock)
    if isinstance(error, ResponseError):
        # Taken one after the other, locks also find another node of a cluster.
        check((yield from ACQUIRE.run_all([(lock, request) for lock in locks])))
        held = list(locks)
    elif error is not None:
        raise error
    return (yield from _watch(held, request.token)) if held else []


def _watch(locks: Sequence[LockKeys], token: bytes) -> Core[list[LockKeys]]:
    """Watch locks and return those held with `token`; one round trip if all are.

    If some are not held, only the others are watched, by another round trip: what other clients do
    with theirs must not stop a transaction.
    """
    held = list(locks)
    while held:
        request = Request(held[0].lock, _watching(held), hold=True)
        replies = check((yield from deliver(request, repeatable=True)))
        seen = _held(held, replies, token)
        if seen == held:
            break
        yield from _unwatch(held[0].lock)
        held = seen
    return held


def _unwatch(key: str) -> Core[None]:
    """Give the connection back that `_watch` kept."""
    try:
        yield Request(key, [UNWATCH])
    except ConnectionLost:
        return


def _release_all(locks: Sequence[LockKeys], token: bytes) -> Core[None]:
    """Give up locks and hand them on; a failure is logged, because the leases end by themselves."""
    if locks:
        answers = yield from RELEASE.run_all([(lock, ReleaseRequest(token)) for lock in locks])
        error = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if error is not None:
            logger.debug("releasing %d locks failed, they expire: %s", len(locks), error)


def _watching(locks: Sequence[LockKeys]) -> list[bytes]:
    gets = [encode_command("GET", lock.lock) for lock in locks]
    return [encode_command("WATCH", *(lock.lock for lock in locks)), *gets]


def _held(locks: Sequence[LockKeys], replies: Sequence[object], token: bytes) -> list[LockKeys]:
    values = replies[len(replies) - len(locks) :]
    return [lock for lock, value in zip(locks, values, strict=True) if value == token]
