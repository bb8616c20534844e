"""The algorithm of a lock object, the same for threads and asyncio."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from bloomlock.effects import AnyRuntime, ConnectionLost, Core, Limit, Pause, make
from bloomlock.errors import LockError, LockLostError, LockNotOwnedError, QuorumError
from bloomlock.locks.protocol.model import LIVENESS_MS, AcquireRequest, ReleaseRequest
from bloomlock.locks.protocol.steps import LockSteps, Renewal, renew_all
from bloomlock.locks.protocol.waiting import GRACE_SECONDS, Attempt, deadline_of
from bloomlock.runtime.clock import boot_clock

from .events import Events, LockEvent
from .hold import OUT_OF_LEASE, RENEWALS_PER_LEASE, Hold
from .options import CONFIRM_SECONDS, check_lease, milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys

    from .options import LockOptions

logger = logging.getLogger("bloomlock.locks")

MOMENT = 0.1
"""Seconds; a hold that is shorter pays for no renewal, and seldom for a wake-up of the watchdog."""
RENEWAL_PAUSE = 0.01
TAKEN = "its key was gone, and the lock was granted anew"

_guard = threading.RLock()


class Tokens:
    """A source of tokens that no other client has: random for each process, counted within it.

    A child of fork must start over.
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Draw another random part."""
        self._random = secrets.token_urlsafe(15).encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        """Return the next token."""
        return b"%b.%x" % (self._random, next(self._numbers))


class Watcher(Protocol):
    """What renews holds and finds out that they are lost."""

    def add(self, hold: Hold, session: LockSession, runtime: AnyRuntime) -> None:
        """Begin to watch a hold of a lock object, which is renewed through a runtime."""

    def remove(self, hold: Hold) -> None:
        """Stop; from now on it is not renewed."""

    def call(self, function: Callable[[], object]) -> None:
        """Call a function that runs the user's code, where it stops no renewal; never raises."""


class Holdings:
    """The holds of one lock object by owner: the thread or task that acquired them.

    No hold replaces another: an owner has all that were granted to it and not given back. Reading
    takes no lock, because the tuples are replaced as a whole.

    Args:
        shared: Whether an owner that has no hold of its own may use those of others.

    Attributes:
        has_ended: Whether an owner has ended.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.has_ended: Callable[[Any], bool] = lambda _: False
        self._shared = shared
        self._holds: dict[object, tuple[Hold, ...]] = {}
        self._owners: dict[Hold, object] = {}

    def own(self, owner: object) -> Hold | None:
        """Return what an owner acquired last, lost or not; none that a parent process acquired."""
        holds = self._holds.get(owner)
        if holds is not None:
            pid = os.getpid()
            for hold in reversed(holds):
                if hold.pid == pid:
                    return hold
        return None

    def mine(self, owner: object) -> Hold | None:
        """Return an owner's hold: what it acquired, or what it is the heir of."""
        return (self.own(owner) or self._inherited(owner)) if self._owners else None

    def _inherited(self, owner: object) -> Hold | None:
        if owner is not None:
            for left in self._all():
                if left.heir is owner and self._has_lost_its_owner(left):
                    self.drop(left)
                    self.put(owner, left)
                    return left
        return None

    def of(self, owner: object) -> Hold | None:
        """Return what an owner may give back: its own; else, if they are shared, the oldest."""
        hold = self.own(owner) or (self._inherited(owner) if self._owners else None)
        if hold is None and self._shared:
            held = self._all()
            live = [other for other in held if not other.lost]
            return min(live or held, key=lambda other: other.since, default=None)
        return hold

    def put(self, owner: object, hold: Hold) -> bool:
        """Note that an owner holds the lock; what it has already stays.

        Returns:
            Whether there is no other hold.
        """
        with _guard:
            is_only = not self._owners
            self._holds[owner] = (hold,) if is_only else (*self._holds.get(owner, ()), hold)
            self._owners[hold] = owner
        return is_only

    def rivals(self, hold: Hold) -> list[Hold]:
        """Return all other holds that are not known to be lost."""
        return [other for other in self._all() if other is not hold and not other.lost]

    def forget_lost(self, owner: object) -> None:
        """Forget the lost holds of an owner that has a newer one."""
        holds = self._holds.get(owner, ())
        for hold in holds[:-1]:
            if hold.lost:
                self.drop(hold)

    def count_again(self, hold: Hold) -> bool:
        """Count a hold once more; False if it was given back meanwhile."""
        with _guard:
            if hold not in self:
                return False
            hold.count += 1
            return True

    def give_back(self, hold: Hold, stop: Callable[[Hold], None]) -> int | None:
        """Count a hold once less, and forget it with the last.

        Args:
            hold: One of these.
            stop: Called with the hold before it is forgotten.

        Returns:
            How often it is still held; None: another thread has given it back.
        """
        with _guard:
            if hold not in self._owners:
                return None
            if hold.count > 1:
                hold.count -= 1
                return hold.count
            stop(hold)
            self._forget(hold)
            return 0

    def drop(self, hold: Hold) -> None:
        """Forget a hold, however often it is counted."""
        with _guard:
            if hold in self._owners:
                self._forget(hold)

    def _forget(self, hold: Hold) -> None:
        owner = self._owners.pop(hold)
        held = self._holds[owner]
        rest = tuple(other for other in held if other is not hold) if len(held) > 1 else ()
        if rest:
            self._holds[owner] = rest
        else:
            del self._holds[owner]

    def tokens(self) -> set[bytes]:
        """Return the tokens of all holds."""
        return {hold.token for hold in list(self._owners)}

    def __contains__(self, hold: Hold) -> bool:
        return hold in self._owners

    def owner_of(self, hold: Hold) -> object:
        """Return who acquired a hold, None if it was given back."""
        return self._owners.get(hold)

    def bequeath(self, owner: object, heir: object) -> None:
        """Let an owner's hold be another's once the owner has ended."""
        if (hold := self.own(owner)) is not None:
            hold.heir = heir

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether neither its owner nor its heir is left to give a hold back."""
        heir_is_left = hold.heir is not None and not self.has_ended(hold.heir)
        return not (self._shared or heir_is_left) and self._has_lost_its_owner(hold)

    def _has_lost_its_owner(self, hold: Hold) -> bool:
        owner = self._owners.get(hold)
        return owner is not None and self.has_ended(owner)

    def _all(self) -> list[Hold]:
        pid = os.getpid()
        return [hold for hold in list(self._owners) if hold.pid == pid]


class LockSession:
    """One lock object: who of this process holds it, and what that takes.

    Args:
        name: What users call it.
        keys: Its keys.
        options: Its parameters.
        group: Which holds share the lock; empty: none.
        may_join: Whether holds of one group may join past waiters.
        reentrant: Whether a holder may acquire it again.
    """

    def __init__(
        self,
        name: str,
        keys: LockKeys,
        options: LockOptions,
        *,
        group: bytes = b"",
        may_join: bool = False,
        reentrant: bool = False,
    ) -> None:
        self.name = name
        self.keys = keys
        self.options = options
        self.steps: LockSteps
        # Called once for each hold that is lost; set by the lock's class.
        self.report_lost: Callable[[], None] = lambda: None
        # The write side of a read-write lock for its read side, and the other way round.
        self.other_side: LockSession | None = None
        self.events = Events(options.observer)
        self.holdings = Holdings(shared=not options.thread_local)
        self._group = group
        self._may_join = may_join
        self._reentrant = reentrant
        self._watcher: Watcher
        self._runtime: AnyRuntime
        self._lease_ms = options.lease_ms
        self._crowded = False

    def attach(self, runtime: AnyRuntime, watcher: Watcher) -> None:
        """Set the runtime that carries out commands, and the watchdog."""
        self._runtime = runtime
        self._watcher = watcher
        self.steps = LockSteps(self.keys, missing_of(runtime))

    def begin(self, owner: object, seconds: float | None, token: bytes | None) -> Attempt | bool:
        """Prepare to acquire.

        Returns:
            What is to be carried out. True: the owner has the lock already and holds it once more.
            False: it has the lock already, and this lock cannot be held twice.

        Raises:
            LockLostError: If a re-entrant lock was lost meanwhile.
            LockError: If the owner holds it and would wait for itself.
        """
        hold = (self.holdings.of if self._reentrant else self.holdings.mine)(owner)
        now = boot_clock()
        if hold is not None and self._reentrant:
            self._check_alive(hold)
            if self.holdings.count_again(hold):
                return True
            hold = None
        if hold is not None and now >= hold.deadline:
            self.lose(hold, OUT_OF_LEASE)
        if self.options.thread_local:
            if seconds != 0:
                if hold is not None or self.other_side is not None:
                    self._refuse_to_wait_for_itself(hold, owner)
            elif hold is not None and not hold.lost:
                # The server would let a reader in a second time.
                self.events.report(LockEvent("timeout", self.name, None, 0.0))
                return False
        provisional_lease_ms = LIVENESS_MS if self.options.renews else 0
        terms = (self._lease_ms, self._group, self._may_join, b"", provisional_lease_ms)
        request = make(AcquireRequest, (token or TOKENS.new(), *terms))
        return self._attempt(request, None if seconds is None else now + seconds)

    def _refuse_to_wait_for_itself(self, hold: Hold | None, owner: object) -> None:
        if hold is not None and not hold.lost:
            raise LockError(
                f"lock {self.name!r} is held by this very thread or task, which would wait for "
                f"itself; use ReentrantLock to acquire it again"
            )
        other = self.other_side.holdings.own(owner) if self.other_side is not None else None
        if other is not None and not other.lost and boot_clock() < other.deadline:
            raise LockError(
                f"lock {self.name!r} is held on its other side by this very thread or task, "
                f"which would wait for itself"
            )

    def _attempt(self, request: AcquireRequest, until: float | None) -> Attempt:
        return Attempt(self.steps, request, until, boot_clock, crowded=self._crowded)

    def acquire(self, attempt: Attempt, owner: object) -> Core[bool]:
        """Carry an attempt out; `attempt.leave` must be run if this does not end."""
        began = boot_clock()
        got = yield from attempt.run()
        now = boot_clock()
        # A client that had to wait will have to again, and one that leaves others waiting.
        self._crowded = bool(attempt.request.channel) or got is None or got.waiters
        if got is None:
            self.events.report(LockEvent("timeout", self.name, None, now - began))
            return False
        if self.options.replicas:
            yield from self._confirm(attempt)
        hold = Hold(
            attempt.request.token,
            self._group,
            self._lease_ms,
            got.fence or None,
            got.waiters,
            now,
            got.deadline,
            os.getpid(),
        )
        if self.options.max_hold is not None:
            hold.last_renewal = now + self.options.max_hold
        if self.options.renews:
            hold.renew_at = now + _seconds_to_first_renewal(self._lease_ms, got.deadline - now)
        is_only = self.holdings.put(owner, hold)
        self._watcher.add(hold, self, self._runtime)
        if self.options.observer is not None:
            event = LockEvent("acquired", self.name, hold.fence, now - began)
            self.events.report(event, hold)
        if not is_only:
            self._lose_rivals(hold)
            self.holdings.forget_lost(owner)
        return True

    def _lose_rivals(self, hold: Hold) -> None:
        """Lose what this object held before, if none can be held beside a new hold."""
        if self._group:
            return
        for other in self.holdings.rivals(hold):
            # Another thread may have been granted the lock after this one, and be here before it.
            self.lose(min(hold, other, key=lambda each: (each.fence or 0, each.deadline)), TAKEN)

    def _confirm(self, attempt: Attempt) -> Core[None]:
        wanted = self.options.replicas
        wait_ms = milliseconds(CONFIRM_SECONDS)
        yield Limit(boot_clock() + CONFIRM_SECONDS + GRACE_SECONDS, [None])
        try:
            _, count = yield from self.steps.confirm(attempt.request, wanted, wait_ms)
        except ConnectionLost as lost:
            raise lost.cause from None
        if count < wanted:
            yield from attempt.leave()
            raise QuorumError(
                f"lock {self.name!r} was acknowledged by {count} of {wanted} replicas within "
                f"{CONFIRM_SECONDS:g} s and given back"
            )

    def undo(self, attempt: Attempt, owner: object) -> Core[None]:
        """Leave neither a hold nor a place in the queue of an attempt that did not end."""
        hold = self.holdings.own(owner)
        if hold is not None and hold.token == attempt.request.token:
            self._watcher.remove(hold)
            self.holdings.drop(hold)
        if attempt.begun:
            yield from attempt.leave_behind()

    def release(self, owner: object) -> Core[None]:
        """Give the lock back, or, re-entrant, one of its holds.

        Raises:
            LockNotOwnedError: If the owner does not hold it.
            LockLostError: If it was lost.
        """
        while True:
            hold = self._require(owner)
            if (left := self.holdings.give_back(hold, self._watcher.remove)) is not None:
                break
        if left:
            return
        now = boot_clock()
        request = make(ReleaseRequest, (hold.token, hold.group, b""))
        try:
            held = yield from self.steps.release(request, waiters=hold.waiters)
        except ConnectionLost as lost:
            if hold.lost:
                raise self._lost_error(hold) from None
            raise lost.cause from None
        if hold.lost or held is False or (held is None and now >= hold.deadline):
            self.lose(hold, "its key was gone when it was released")
            raise self._lost_error(hold)
        if self.options.observer is not None:
            event = LockEvent("released", self.name, hold.fence, now - hold.since)
            self.events.report(event, hold)

    def extend(self, owner: object, ttl: float | None, *, add: bool = False) -> Core[bool]:
        """Let the lease be `ttl` seconds from now, and that long at each renewal; True.

        Args:
            owner: Who holds it.
            ttl: Seconds; None: the lease it has.
            add: Whether they are added to what is left.

        Raises:
            ConfigurationError: If `ttl` is not usable.
            LockNotOwnedError, LockLostError: If it is not held.
        """
        hold = self._require(owner)
        self._check_alive(hold)
        usual_ms = self._lease_to_extend_to(hold, ttl, add=add)
        renew_at, hold.renew_at = hold.renew_at, None
        try:
            # Nothing that was known before is to be noted after the new deadline.
            self._watch(hold)
            while hold.renewing:
                yield Pause(RENEWAL_PAUSE)
            sent = boot_clock()
            lease_ms = hold.limit_lease_ms(usual_ms, sent)
            # If the answer does not come, either lease may be in force.
            hold.deadline = min(hold.deadline, deadline_of(sent, lease_ms))
            yield from self._extend(hold, lease_ms)
            hold.lease_ms = usual_ms
            hold.deadline = deadline_of(sent, lease_ms)
            renew_at = sent + hold.renewal_seconds
        finally:
            if self.options.renews and not hold.lost:
                hold.renew_at = renew_at
                self._watch(hold)
        return True

    def _lease_to_extend_to(self, hold: Hold, ttl: float | None, *, add: bool) -> int:
        """Return a lease in milliseconds."""
        seconds = hold.lease_ms / 1000 if ttl is None else check_lease(ttl)
        if add:
            seconds = check_lease(seconds + max(0.0, hold.deadline - boot_clock()))
        return milliseconds(seconds)

    def _extend(self, hold: Hold, lease_ms: int) -> Core[None]:
        renewal = Renewal(self.keys, hold.token, hold.group, lease_ms)
        [held] = yield from self.renew_all([renewal])
        if isinstance(held, ConnectionLost):
            raise held.cause from None
        if isinstance(held, Exception):
            raise held
        if not held:
            self.lose(hold, "its key was gone when it was extended")
            raise self._lost_error(hold)

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"lock {self.name!r}"

    @property
    def key(self) -> str:
        """The lock's own key."""
        return self.keys.lock

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether no owner is left to give a hold back."""
        return self.holdings.is_orphan(hold)

    def is_abandoned(self, hold: Hold, has_ended: Callable[[object], bool]) -> bool:
        """Return whether the owner of a hold, if it has one, has ended."""
        owner = self.holdings.owner_of(hold)
        return owner is None or has_ended(owner)

    def renewal_of(self, hold: Hold, lease_ms: int) -> Renewal:
        """Return what asks for a lease."""
        return Renewal(self.keys, hold.token, hold.group, lease_ms)

    def renewed(self, hold: Hold, now: float) -> None:
        """Report a renewal."""
        if self.options.observer is not None:
            event = LockEvent("renewed", self.name, hold.fence, now - hold.since)
            self.report_behind(event, hold)

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[list[bool | Exception]]:
        """Renew holds that lie on one server; see the function of that name."""
        return (yield from renew_all(renewals, missing_of(self._runtime)))

    def _watch(self, hold: Hold) -> None:
        """Watch a hold, or look anew at when it is due."""
        self._watcher.add(hold, self, self._runtime)

    def owned(self, owner: object) -> Core[bool]:
        """Ask the server whether the owner's hold is in force."""
        hold = self.holdings.of(owner)
        if hold is None or hold.lost:
            return False
        return (yield from self.steps.is_held(hold.token, hold.group))

    def locked(self) -> Core[bool]:
        """Ask the server whether any client holds the lock."""
        return (yield from self.steps.value()) is not None

    def check(self, owner: object) -> None:
        """Raise LockNotOwnedError or LockLostError if the owner cannot rely on the lock."""
        self._check_alive(self._require(owner))

    def lose(self, hold: Hold, reason: str, *, behind: bool = False) -> bool:
        """Note that a hold is lost; False if that was known already.

        Args:
            hold: Which one.
            reason: Why, in a few words.
            behind: Whether the holder does not notice it itself; the observer then is called
                apart from this thread.
        """
        self._watcher.remove(hold)
        hold.lost = hold.lost or reason
        try:
            # One of several threads that find out at once.
            hold.unreported.pop()
        except IndexError:
            return False
        if hold.event is not None:
            hold.event.set()
        logger.warning("lock %r was lost: %s", self.name, reason)
        event = LockEvent("lost", self.name, hold.fence, boot_clock() - hold.since, reason)
        self.report_lost()
        if behind:
            self.report_behind(event, hold)
        else:
            self.events.report(event, hold)
        return True

    def lose_behind(self, hold: Hold, reason: str) -> None:
        """Note that a hold is lost that its owner has not given back; never raises."""
        if hold in self.holdings:
            self.lose(hold, reason, behind=True)
            if self.holdings.is_orphan(hold):
                self.holdings.drop(hold)

    def report_behind(self, event: LockEvent, hold: Hold) -> None:
        """Report what happened behind the holder's back; never raises, never waits."""
        self.events.report_behind(event, hold, self._watcher.call)

    def _require(self, owner: object) -> Hold:
        hold = self.holdings.of(owner)
        if hold is None:
            raise LockNotOwnedError(f"lock {self.name!r} is not held by this thread or task")
        return hold

    def _check_alive(self, hold: Hold) -> None:
        if not hold.lost and boot_clock() >= hold.deadline:
            self.lose(hold, OUT_OF_LEASE)
        if hold.lost:
            raise self._lost_error(hold)

    def _lost_error(self, hold: Hold) -> LockLostError:
        return LockLostError(f"lock {self.name!r} was lost: {hold.lost}")


def _seconds_to_first_renewal(lease_ms: int, left: float) -> float:
    """Return after how long a hold is renewed first, with that many seconds left of its lease.

    A grant that was announced comes with a provisional lease; if less than two thirds of the
    whole lease are left, the hold gets the whole one as soon as it has lasted a moment.
    """
    seconds = left / RENEWALS_PER_LEASE
    if left < lease_ms / 1000 * (1 - 1 / RENEWALS_PER_LEASE):
        return min(MOMENT, seconds)
    return seconds


_MISSING: weakref.WeakKeyDictionary[AnyRuntime, set[str]] = weakref.WeakKeyDictionary()


def missing_of(runtime: AnyRuntime) -> set[str]:
    """Return what the server of a runtime is known to lack."""
    known = _MISSING.get(runtime)
    if known is None:
        known = _MISSING[runtime] = set()
    return known


TOKENS = Tokens()


def _start_over() -> None:
    global _guard  # noqa: PLW0603 - another thread may have had it when this process was forked
    _guard = threading.RLock()
    TOKENS.start_over()


os.register_at_fork(after_in_child=_start_over)
