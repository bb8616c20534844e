"""What a watchdog has to do and when: pure bookkeeping, with the time passed in."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from bloomlock.effects import ConnectionLost, Limit
from bloomlock.locks.protocol.model import ReleaseRequest
from bloomlock.locks.protocol.steps import Renewal
from bloomlock.locks.protocol.waiting import deadline_of

from .events import LockEvent

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterable

    from bloomlock.effects import Core
    from bloomlock.locks.protocol.steps import LockSteps

    from .core import LockCore
    from .hold import Hold

logger = logging.getLogger("bloomlock.locks")

LONGEST_RETRY = 1.0
LONGEST_SLEEP = 1.0
"""Seconds between looks: what a watchdog sleeps by does not count suspend, the leases do."""
GOES_ALONG = 0.25
"""By which part of the time between two renewals one may be early."""
AT_END_SECONDS = 1.0
"""How long what is held is given back when the process or the loop ends."""
GONE = "its key was gone when it was to be renewed"
OUT_OF_LEASE = "its lease ran out before it could be renewed"
ENDED = "the thread or task that held it has ended"


@dataclass(eq=False, slots=True)
class Watch:
    """A hold that is watched.

    Attributes:
        hold: The hold.
        runtime: Through what it is renewed.
        core: The lock object. If that is no more, no caller can release the hold: it is renewed no
            more, and expires unless the process ends before.
        steps: Those of the lock.
    """

    hold: Hold
    runtime: Any
    core: weakref.ref[LockCore]
    steps: LockSteps

    def next_time(self) -> float:
        """Return when something is to be done about it."""
        renew_at = self.hold.renew_at
        if self.hold.renewing or renew_at is None:
            return self.hold.deadline
        return min(renew_at, self.hold.deadline)

    def is_due(self, at: float) -> bool:
        """Tell whether it is to be renewed at that time."""
        renew_at = self.hold.renew_at
        return renew_at is not None and renew_at <= at and not self.hold.renewing


def key_of(watch: Watch) -> str:
    """Return the key of a watched lock; empty if the lock object is no more."""
    core = watch.core()
    return core.keys.lock if core is not None else ""


def place_of(watch: Watch) -> tuple[Any, str]:
    """Return through what a watched lock is renewed, and on which server of a cluster."""
    server_of = getattr(watch.runtime, "server_of", None)
    return watch.runtime, server_of(key_of(watch)) if server_of is not None else ""


class Schedule:
    """The holds that are watched; not safe to use from two threads at once."""

    def __init__(self) -> None:
        """Start empty."""
        self._watches: dict[int, Watch] = {}

    def __len__(self) -> int:
        """Return how many holds are watched."""
        return len(self._watches)

    def add(self, watch: Watch) -> None:
        """Watch a hold, anew if it is watched already."""
        self._watches[id(watch.hold)] = watch

    def remove(self, hold: Hold) -> None:
        """Forget a hold."""
        self._watches.pop(id(hold), None)

    def watches(self, hold: Hold) -> bool:
        """Tell whether a hold is still watched."""
        return id(hold) in self._watches

    def next_time(self) -> float:
        """Return when to look again."""
        return min((watch.next_time() for watch in self._watches.values()), default=float("inf"))

    def over(self, now: float) -> list[tuple[Watch, str]]:
        """Take out and return the holds that are over, each with the reason.

        The owner of a hold is looked at whenever it is to be renewed.
        """
        over = []
        for watch in list(self._watches.values()):
            core = watch.core()
            if watch.hold.deadline <= now:
                over.append((watch, OUT_OF_LEASE))
            elif watch.is_due(now) and core is not None and core.holdings.is_orphan(watch.hold):
                over.append((watch, ENDED))
        for watch, _ in over:
            self.remove(watch.hold)
        return over

    def take_abandoned(self, has_ended: Callable[[object], bool]) -> list[Watch]:
        """Take out and return the holds of owners that can give nothing back any more.

        Args:
            has_ended: Whether an owner can do nothing more.
        """
        abandoned = []
        for watch in list(self._watches.values()):
            core = watch.core()
            owner = core.holdings.owner_of(watch.hold) if core is not None else None
            if watch.hold.pid == os.getpid() and (owner is None or has_ended(owner)):
                abandoned.append(watch)
                self.remove(watch.hold)
        return abandoned

    def due(self, now: float) -> dict[tuple[Any, str], list[Watch]]:
        """Return the holds to renew now, by runtime and server; each once until it is answered.

        A server that is still busy with an earlier renewal waits its turn: one that does not
        answer must not collect threads, nor hold up the other ones of a cluster. What would be due
        soon goes along with what is due now, so that holds that began one by one are renewed
        together.
        """
        if not any(watch.is_due(now) for watch in self._watches.values()):
            return {}
        busy = {place_of(watch) for watch in self._watches.values() if watch.hold.renewing}
        found: dict[tuple[Any, str], list[Watch]] = {}
        for watch in list(self._watches.values()):
            if not watch.is_due(now + watch.hold.renewal_seconds * GOES_ALONG):
                continue
            core = watch.core()
            if core is None:
                logger.warning("a lock was dropped while held; it is left to expire")
                watch.hold.renew_at = None
            elif (place := place_of(watch)) in busy:
                watch.hold.renew_at = now + retry_seconds(watch.hold)
            else:
                found.setdefault(place, []).append(watch)
        for watches in found.values():
            for watch in watches:
                watch.hold.renewing = True
        return found


def retry_seconds(hold: Hold) -> float:
    """Return how long to wait before a renewal is tried again."""
    return min(LONGEST_RETRY, hold.lease_ms / 10_000)


def give_back(watch: Watch, until: float) -> Core[None]:
    """Release a hold that its owner did not, if the server answers in time; never raises."""
    yield Limit(until, [None])
    try:
        yield from watch.steps.release(
            ReleaseRequest(watch.hold.token, watch.hold.group), waiters=watch.hold.waiters
        )
    except (ConnectionLost, RedisError) as error:
        logger.warning("a lock was not released at the end and is left to expire: %s", error)


def give_up(watches: Iterable[Watch], now: float) -> None:
    """Note which renewals came to nothing for now; they are tried again."""
    for watch in watches:
        if watch.hold.renewing:
            watch.hold.renewing = False
            watch.hold.schedule_renewal(now + retry_seconds(watch.hold))


def renew(
    watches: Iterable[Watch],
    clock: Callable[[], float],
    lose: Callable[[Watch, str], None],
) -> Core[None]:
    """Renew holds that one request may carry and note the answers.

    A hold whose renewal is not answered is tried again until its deadline.
    """
    sent = clock()
    asked: list[tuple[Watch, LockCore, Renewal]] = []
    for watch in watches:
        core, hold = watch.core(), watch.hold
        lease_ms = hold.lease_to_ask_ms(sent)
        if core is None or not lease_ms:
            hold.renew_at, hold.renewing = None, False
        else:
            asked.append((watch, core, Renewal(core.keys, hold.token, hold.group, lease_ms)))
    if not asked:
        return
    # All go to the same server, or it is a single one.
    core = asked[0][1]
    results = yield from core.renew_all([renewal for _, _, renewal in asked])
    for (watch, core, renewal), result in zip(asked, results, strict=True):
        hold = watch.hold
        if isinstance(result, Exception):
            logger.warning("lock %r could not be renewed yet: %s", core.name, result)
            hold.schedule_renewal(clock() + retry_seconds(hold))
        elif not result:
            lose(watch, GONE)
        else:
            hold.deadline = max(hold.deadline, deadline_of(sent, renewal.lease_ms))
            hold.schedule_renewal(sent + hold.renewal_seconds)
        # Whoever waits for this finds the deadline as it is now.
        hold.renewing = False
        if result is True and core.options.observer is not None:
            held = sent - hold.since
            core.report_behind(LockEvent("renewed", core.name, hold.fence, held))
