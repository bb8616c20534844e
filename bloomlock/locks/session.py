"""The algorithm of a lock object, the same for threads and asyncio."""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from bloomlock.commands import encode_command
from bloomlock.effects import AnyRuntime, ConnectionLost, Core, Limit, make
from bloomlock.errors import LockError, LockLostError, LockNotOwnedError, QuorumError
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.steps import RENEW, LockSteps
from bloomlock.locks.protocol.values import LIVENESS_MS, AcquireRequest, Granted
from bloomlock.locks.protocol.waiting import GRACE_SECONDS, Attempt, deadline_of
from bloomlock.runtime.clock import boot_clock

from .hold import OUT_OF_LEASE, RENEWALS_PER_LEASE, Hold, Holdings, Watched
from .options import check_lease, milliseconds
from .reports import REPORTS, Events, LockEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.locks.protocol.waiting import Obtained

    from .options import LockOptions
    from .reports import Call, EventKind
    from .watchdog import AsyncWatchdog, Watchdog

CONFIRM_SECONDS = 1.0
"""How long replicas have to acknowledge a grant."""
MOMENT = 0.1
"""Seconds; a hold that is shorter pays for no renewal, and seldom for a wake-up of the watchdog."""


class Tokens:
    """A source of tokens that no other client has: random for each process, counted within it."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self._random = secrets.token_urlsafe(15).encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        return b"%b.%x" % (self._random, next(self._numbers))


TOKENS = Tokens()
os.register_at_fork(after_in_child=TOKENS.start_over)


class LockSession(Watched):
    """One lock object: who of this process holds it, and what that takes.

    Holds of one `group` share the lock; empty: none. Whoever has a `reentrant` one gets it again.
    """

    what = "lock"
    steps: LockSteps

    def __init__(
        self,
        name: str,
        options: LockOptions,
        has_ended: Callable[[Any], bool],
        *,
        group: bytes = b"",
        reentrant: bool = False,
    ) -> None:
        self.name = name
        self.keys = LockKeys.of(name, options.prefix)
        self.options = options
        # Gives what is called for each hold that is lost, while the lock object lives.
        self.report_lost: Callable[[], Callable[[], None] | None] = lambda: None
        # The write side of a read-write lock for its read side, and the other way round.
        self.other_side: LockSession | None = None
        self.holdings = Holdings(has_ended, shared=not options.thread_local)
        self._events = None if options.observer is None else Events(options.observer)
        self._group = group
        self._reentrant = reentrant
        self._watcher: Watchdog | AsyncWatchdog
        self._runtime: AnyRuntime
        self._crowded = False

    def attach(self, runtime: AnyRuntime, watcher: Watchdog | AsyncWatchdog) -> None:
        self._runtime = runtime
        self._watcher = watcher
        self.steps = LockSteps(self.keys, missing_of(runtime))

    def begin(self, owner: object, seconds: float | None, token: bytes | None) -> Attempt | bool:
        """Return the attempt to be carried out, or whether the owner, who has the lock, gets it.

        LockLostError if a re-entrant lock was lost, LockError if the owner would wait for itself.
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
                self._refuse_to_wait_for_itself(hold, owner)
            elif hold is not None and not hold.lost:
                # The server would let a reader in a second time.
                self._report("timeout", 0.0)
                return False
        request = make(
            AcquireRequest,
            (
                token or TOKENS.new(),
                self.options.lease_ms,
                self._group,
                # An owner comes back while he holds the lock; to wait behind others he must not.
                self._reentrant,
                b"",
                LIVENESS_MS if self.options.renews else 0,
            ),
        )
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

    def acquire(self, attempt: Attempt, owner: object, heir: object = None) -> Core[bool]:
        """Carry an attempt out; `undo` must be run if this does not end.

        The hold is of the `heir` once its owner has ended.
        """
        began = boot_clock()
        got = yield from attempt.run()
        now = boot_clock()
        # A client that had to wait will have to again, and one that leaves others waiting.
        self._crowded = bool(attempt.request.channel) or got is None or got.waiters
        if got is None:
            self._report("timeout", now - began)
            return False
        if self.options.replicas:
            yield from self._confirm(attempt)
        hold = self._new_hold(attempt, got, now)
        hold.heir = heir
        self.holdings.put(owner, hold)
        self._watcher.add(hold, self, self._runtime)
        self._report("acquired", now - began, hold)
        for other in self.holdings.others(hold):
            if not (self._group or other.lost):
                # None can be held beside a new one. But another thread may have been granted the
                # lock after this one, and be here before it.
                older = min(hold, other, key=lambda each: (each.fence or 0, each.deadline))
                self.lose(older, "its key was gone, and the lock was granted anew")
            if other.lost and other.owner is owner:
                self.holdings.drop(other)
        return True

    def _new_hold(self, attempt: Attempt, got: Obtained, now: float) -> Hold:
        options, left = self.options, got.deadline - now
        terms = (got.fence or None, got.waiters, now, got.deadline)
        hold = Hold(attempt.request.token, self._group, options.lease_ms, *terms)
        if options.max_hold is not None:
            hold.last_renewal = now + options.max_hold
        if options.renews:
            seconds = left / RENEWALS_PER_LEASE
            if left < options.lease_ms / 1000 * (1 - 1 / RENEWALS_PER_LEASE):
                # A grant that was announced comes with a provisional lease. The hold gets the whole
                # one as soon as it has lasted a moment.
                seconds = min(MOMENT, seconds)
            hold.renew_at = now + seconds
        return hold

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
        """Give the lock back, or, re-entrant, one of its holds."""
        while True:
            hold = self._require(owner)
            if (left := self.holdings.give_back(hold, self._watcher.remove)) is not None:
                break
        if left:
            return
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
        self._report("released", now - hold.since, hold)

    def extend(self, owner: object, ttl: float | None, *, add: bool = False) -> Core[bool]:
        """Let the lease be `ttl` seconds from now, and that long at each renewal.

        With `add` they are added to what is left of it. Returns True.
        """
        hold = self.check(owner)
        usual_ms = self._lease_to_extend_to(hold, ttl, add=add)
        sent = boot_clock()
        lease_ms = hold.limit_lease_ms(usual_ms, sent)
        # If the answer does not come, either lease may be in force. A renewal that is under way
        # does no harm: no step shortens a lease on the server.
        hold.deadline = min(hold.deadline, deadline_of(sent, lease_ms))
        [held] = yield from self.renew_all([self.renewal_of(hold, lease_ms)])
        if isinstance(held, Exception):
            raise (held.cause if isinstance(held, ConnectionLost) else held) from None
        if not held:
            self.lose(hold, "its key was gone when it was extended")
            raise self._lost_error(hold)
        hold.lease_ms = usual_ms
        hold.deadline = deadline_of(sent, lease_ms)
        if self.options.renews:
            hold.renew_at = sent + hold.renewal_seconds
        # The watchdog sleeps until what was due before.
        self._watcher.add(hold, self, self._runtime)
        return True

    def _lease_to_extend_to(self, hold: Hold, ttl: float | None, *, add: bool) -> int:
        seconds = hold.lease_ms / 1000 if ttl is None else check_lease(ttl)
        if add:
            seconds = check_lease(seconds + max(0.0, hold.deadline - boot_clock()))
        return milliseconds(seconds)

    def owned(self, owner: object) -> Core[bool]:
        hold = self.holdings.of(owner)
        if hold is None or hold.lost:
            return False
        return (yield from self.steps.is_held(hold.token, hold.group))

    def locked(self) -> Core[bool]:
        return (yield from self.steps.value()) is not None

    def check(self, owner: object) -> Hold:
        """Return the hold of an owner who can rely on it; else raise."""
        hold = self._require(owner)
        self._check_alive(hold)
        return hold

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

    def lose(self, hold: Hold, reason: str, call: Call | None = None) -> bool:
        """Note that a hold is lost; return whether that is news.

        It is reported in this thread, or by what `call` calls; with that this never raises.
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
        if (report := self.report_lost()) is not None:
            report()
        if call is None:
            REPORTS.lost(self.what, [self.label], reason)
        self._report("lost", boot_clock() - hold.since, hold, reason, call)
        return True

    def _report(
        self,
        kind: EventKind,
        seconds: float,
        hold: Hold | None = None,
        error: str | None = None,
        call: Call | None = None,
    ) -> None:
        if self._events is not None:
            fence = None if hold is None else hold.fence
            self._events.report(LockEvent(kind, self.name, fence, seconds, error), hold, call)

    # What a watchdog asks for.

    @property
    def label(self) -> str:
        return f"lock {self.name!r}"

    @property
    def key(self) -> str:
        return self.keys.lock

    def is_orphan(self, hold: Hold) -> bool:
        return self.holdings.is_orphan(hold)

    def renewal_of(self, hold: Hold, lease_ms: int) -> Any:
        return self.keys, (hold.token, hold.group, lease_ms)

    def renew_all(self, renewals: Sequence[Any]) -> Core[Sequence[bool | Exception]]:
        return RENEW.run_all(renewals)

    def renewed(self, hold: Hold) -> None:
        self._report("renewed", boot_clock() - hold.since, hold, call=self._watcher.call)

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        is_news = hold in self.holdings and self.lose(hold, reason, self._watcher.call)
        if self.holdings.is_orphan(hold):
            self.holdings.drop(hold)
        return is_news


_MISSING: weakref.WeakKeyDictionary[AnyRuntime, set[str]] = weakref.WeakKeyDictionary()


def missing_of(runtime: AnyRuntime) -> set[str]:
    return _MISSING.setdefault(runtime, set())
