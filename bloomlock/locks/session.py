"""The holds of one lock object, for threads and asyncio."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from bloomlock.clock import boot_clock
from bloomlock.commands import encode_command
from bloomlock.effects import AnyRuntime, ConnectionLost, Core, Limit, make
from bloomlock.errors import (
    ConfigurationError,
    LockError,
    LockLostError,
    LockNotOwnedError,
    QuorumError,
)
from bloomlock.keys import LockKeys
from bloomlock.locks.options import deadline_of
from bloomlock.locks.protocol.steps import RENEW, Granted, LockRequest, LockSteps
from bloomlock.locks.protocol.waiting import GRACE_SECONDS, Attempt

from .hold import OUT_OF_LEASE, RENEWALS_PER_LEASE, Hold, Watched, has_ended
from .options import check_lease, milliseconds
from .reports import REPORTS, LockEvent
from .watchdog import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .hold import Renewal
    from .options import LockOptions
    from .reports import EventKind

CONFIRM_SECONDS = 1.0
"""How long replicas have to acknowledge a grant."""


def new_token() -> bytes:
    """Return a token that no other client has."""
    return os.urandom(15).hex().encode()


class LockSession(Watched):
    what = "lock"
    steps: LockSteps
    runtime: AnyRuntime
    attempt = Attempt

    def __init__(
        self,
        name: str,
        options: LockOptions,
        *,
        is_shared: bool = False,
        is_reentrant: bool = False,
    ) -> None:
        self.name = name
        self.keys = LockKeys.of(name, options.prefix)
        if is_reentrant and not options.thread_local:
            raise ConfigurationError("thread_local must be True for a ReentrantLock, not False")
        self.options = options
        # The lock object, as long as it lives.
        self.lock: Callable[[], Any] = lambda: None
        # The write side of a read-write lock for its read side, and the other way round.
        self.other_side: LockSession | None = None
        # All that were acquired here, lost ones too; no hold replaces another.
        self._holds: dict[Hold, Hold] = {}
        self._is_shared = is_shared
        self._is_reentrant = is_reentrant
        self.steps = LockSteps(self.keys)
        self._crowded = False

    def begin(self, owner: object, seconds: float | None) -> Attempt | bool:
        """Return the attempt to carry out, or, if the owner has the lock, the result of `acquire`.

        LockLostError if a re-entrant lock was lost, LockError if the owner would wait for itself.
        """
        hold, now = self.own_hold(owner), boot_clock()
        if hold is not None and self._is_reentrant:
            self._check_alive(hold)
            hold.count += 1
            return True
        if hold is not None and now >= hold.deadline:
            self.lose(hold, OUT_OF_LEASE)
        if self.options.thread_local and hold is not None and not hold.lost:
            if seconds == 0:
                # The server would let a reader in a second time.
                self._report("timeout", now)
                return False
            raise LockError(
                f"lock {self.name!r} is held by this very thread or task, which would wait for "
                f"itself; use ReentrantLock to acquire it again"
            )
        other = self.other_side.own_hold(owner) if self.other_side is not None else None
        is_other_held = other is not None and not other.lost and now < other.deadline
        if self.options.thread_local and seconds != 0 and is_other_held:
            raise LockError(
                f"lock {self.name!r} is held on its other side by this very thread or task, "
                f"which would wait for itself"
            )
        request = make(LockRequest, (new_token(), self.options.lease_ms, self._is_shared, b""))
        until = None if seconds is None else now + seconds
        return self.attempt(self.steps, request, until, boot_clock, crowded=self._crowded)

    def acquire(self, attempt: Attempt, owner: object) -> Core[bool]:
        """Carry an attempt out; `undo` must be run if this does not end."""
        began = boot_clock()
        got = yield from attempt.run()
        # A client that had to wait will have to again.
        self._crowded = got is None or bool(attempt.request.channel)
        if got is None:
            self._report("timeout", began)
            return False
        (fence, deadline), options = got, self.options
        if options.replicas:
            yield from self._confirm(attempt)
        now = boot_clock()
        terms = (fence or None, now, deadline, self._is_shared)
        hold = Hold(attempt.request.token, options.lease_ms, *terms)
        hold.owner, hold.ballot = owner, attempt.ballot
        if options.max_hold is not None:
            hold.last_renewal = now + options.max_hold
        if options.renews:
            hold.renew_at = now + (deadline - now) / RENEWALS_PER_LEASE
        self._holds[hold] = hold
        WATCHDOG.add(hold, self)
        self._report("acquired", began, hold)
        for other in self._all_holds():
            if not (other is hold or self._is_shared or other.lost):
                # None can be held beside a new one. But another thread may have been granted the
                # lock after this one, and be here before it.
                older = min(hold, other, key=lambda each: (each.fence or 0, each.deadline))
                self.lose(older, "its key was gone, and the lock was granted again")
            if other is not hold and other.lost and other.owner is owner:
                self._holds.pop(other, None)
        return True

    def _confirm(self, attempt: Attempt) -> Core[None]:
        """Write a hold again, because WAIT speaks of what its own connection wrote.

        The grant may have been written by another one.
        """
        wanted = self.options.replicas
        wait = encode_command("WAIT", wanted, milliseconds(CONFIRM_SECONDS))
        yield Limit(boot_clock() + CONFIRM_SECONDS + GRACE_SECONDS, [None])
        try:
            answer, count = yield from self.steps.acquire(attempt.request, wait)
        except ConnectionLost as lost:
            raise lost.cause from None
        count = int(count) if isinstance(answer, Granted) else 0
        if count < wanted:
            yield from attempt.leave_behind()
            raise QuorumError(
                f"lock {self.name!r} was acknowledged by {count} of {wanted} replicas within "
                f"{CONFIRM_SECONDS:g} s and given back"
            )

    def undo(self, attempt: Attempt) -> Core[None]:
        """Leave neither a hold nor a place in the queue of an attempt that did not end."""
        for hold in self._all_holds():
            if hold.token == attempt.request.token:
                WATCHDOG.remove(hold)
                self._holds.pop(hold, None)
        yield from attempt.leave_behind()

    def release(self, owner: object) -> Core[None]:
        while True:
            hold = self._require(owner)
            if hold.count > 1:
                hold.count -= 1
                return
            WATCHDOG.remove(hold)
            # If not, another thread releases it.
            if self._holds.pop(hold, None) is hold:
                break
        now = boot_clock()
        try:
            held = yield from self.steps.give_back(hold)
        except ConnectionLost as lost:
            if hold.lost:
                raise self._lost_error(hold) from None
            raise lost.cause from None
        if hold.lost or held is False or (held is None and now >= hold.deadline):
            self.lose(hold, "its key was gone when it was released")
            raise self._lost_error(hold)
        self._report("released", hold.since, hold)

    def extend(self, owner: object, ttl: float | None) -> Core[bool]:
        """Let the lease be `ttl` seconds from now, and that long at each renewal; return True."""
        hold = self.check(owner)
        seconds = hold.lease_ms / 1000 if ttl is None else check_lease(ttl)
        sent = boot_clock()
        longest = self.options.longest_ttl
        if ttl is not None and seconds > longest > 0:
            raise ConfigurationError(f"ttl must be at most longest_ttl = {longest:g}, not {ttl!r}")
        usual_ms = milliseconds(seconds)
        lease_ms = hold.limit_lease_ms(usual_ms, sent)
        # If the answer does not come, either lease may be in force. A renewal that is under way
        # does no harm: no step shortens a lease on the server.
        hold.deadline = min(hold.deadline, deadline_of(sent, lease_ms))
        if not (yield from self._renew(hold, lease_ms)):
            self.lose(hold, "its key was gone when it was extended")
            raise self._lost_error(hold)
        hold.lease_ms = usual_ms
        hold.deadline = deadline_of(sent, lease_ms)
        if self.options.renews:
            hold.renew_at = sent + hold.renewal_seconds
        # The watchdog sleeps until what was due before.
        WATCHDOG.add(hold, self)
        return True

    def owned(self, owner: object) -> Core[bool]:
        hold = self.hold_of(owner)
        if hold is None or hold.lost:
            return False
        # No renewal shortens a lease, so this one changes none.
        return (yield from self._renew(hold, lease_ms=1))

    def _renew(self, hold: Hold, lease_ms: int) -> Core[bool]:
        [held] = yield from self.renew_all([(self, hold, lease_ms)])
        if isinstance(held, Exception):
            raise (held.cause if isinstance(held, ConnectionLost) else held) from None
        return bool(held)

    def _all_holds(self) -> list[Hold]:
        """Return the holds of this process, not of its parent; the last one first."""
        if not self._holds:
            return []
        pid = os.getpid()
        return [hold for hold in reversed(self._holds.copy()) if hold.pid == pid]

    def own_hold(self, owner: object) -> Hold | None:
        return next((hold for hold in self._all_holds() if hold.owner is owner), None)

    def hold_of(self, owner: object) -> Hold | None:
        """Return what an owner may give back: its own; else the oldest of any, if that may be."""
        hold = self.own_hold(owner)
        if hold is None and not self.options.thread_local:
            held = self._all_holds()
            live = [other for other in held if not other.lost]
            return min(live or held, key=lambda other: other.since, default=None)
        return hold

    def check(self, owner: object) -> Hold:
        hold = self._require(owner)
        self._check_alive(hold)
        return hold

    def _require(self, owner: object) -> Hold:
        hold = self.hold_of(owner)
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

    def lose(self, hold: Hold, reason: str, *, behind: bool = False) -> bool:
        """Note that a hold is lost; return whether that is news.

        The watchdog notes it `behind` the thread or loop of the holder, and logs what is news.
        """
        WATCHDOG.remove(hold)
        hold.lost = hold.lost or reason
        try:
            # One of several threads that find out at once.
            hold.unreported.pop()
        except IndexError:
            return False
        if hold.event is not None and behind and hold.loop is not None:
            WATCHDOG.call(hold.event.set, self, hold.loop)
        elif hold.event is not None:
            hold.event.set()
        if (on_lost := self.options.on_lost) is not None and (lock := self.lock()) is not None:
            WATCHDOG.call(partial(self._call, on_lost, lock, "on_lost"), self, hold.loop)
        if not behind:
            REPORTS.lost(self.what, [self.label], reason)
        self._report("lost", hold.since, hold, behind=behind)
        return True

    def _report(
        self, kind: EventKind, since: float, hold: Hold | None = None, *, behind: bool = False
    ) -> None:
        if (observer := self.options.observer) is None:
            return
        fence, error = (hold.fence, hold.lost or None) if hold is not None else (None, None)
        event = LockEvent(kind, self.name, fence, boot_clock() - since, error)
        if hold is not None and behind:
            call = partial(self._call, observer, event, "the observer")
            WATCHDOG.call(call, self, hold.loop)
        else:
            self._call(observer, event, "the observer", logged=Exception)

    def _call(
        self,
        function: Callable[[Any], object],
        argument: Any,
        what: str,
        *,
        logged: type[BaseException] = BaseException,
    ) -> None:
        try:
            function(argument)
        except logged:
            REPORTS.exception("lock", "%s of lock %r raised", what, self.name)

    # What a watchdog asks for.

    @property
    def label(self) -> str:
        return f"lock {self.name!r}"

    @property
    def key(self) -> str:
        return self.keys.lock

    def is_orphan(self, hold: Hold) -> bool:
        return self.options.thread_local and has_ended(hold.owner)

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[Sequence[bool | Exception]]:
        return RENEW.run_all(
            [
                (session.keys, LockRequest(hold.token, lease_ms, hold.is_shared))
                for session, hold, lease_ms in renewals
            ]
        )

    def renewed(self, hold: Hold) -> None:
        # The reply may come while the hold is given back.
        if hold in self._holds:
            self._report("renewed", hold.since, hold, behind=True)

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        is_news = hold in self._holds and self.lose(hold, reason, behind=True)
        if self.is_orphan(hold):
            self._holds.pop(hold, None)
        return is_news
