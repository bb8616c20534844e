"""Holds: each is one lock as long as one thread or task of this process has it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OUT_OF_LEASE = "its lease ran out before it could be renewed"
RENEWALS_PER_LEASE = 3


@dataclass(eq=False, slots=True)
class Hold:
    """What is known of it here.

    Attributes:
        token: Its token, which no other hold has.
        group: Which holds it shares the lock with; empty: none.
        lease_ms: The lease it is renewed to.
        fence: Number of the grant, None if its kind of lock has none.
        waiters: Whether a client was waiting when it was granted.
        since: When it was obtained, by the holder's clock in seconds.
        deadline: Until when the holder may rely on it.
        renew_at: When to renew it; None: never.
        last_renewal: Renewing must not carry it past this.
        pid: The process that has it; a fork's child does not.
        ballot: What several servers said of it, None if it is of one server.
        heir: Who has it after its owner has ended; None: no other.
        count: How often a re-entrant lock was acquired.
        renewing: Whether a renewal is on its way.
        lost: Why it is lost; empty: it is not.
        unreported: Emptied by the thread that reports that it is lost.
        event: Set when it is lost; made at its first use.
        reported: Kind of the event that was reported of it last; empty: none.
        session, kind, runtime, steps: What a watchdog was given for it: the lock or claim, if that
            is still there, its class, through what it is renewed, and what gives it back at the
            end of the process or the loop (None: nothing does).
    """

    token: bytes
    group: bytes
    lease_ms: int
    fence: int | None
    waiters: bool
    since: float
    deadline: float
    pid: int
    renew_at: float | None = None
    last_renewal: float = float("inf")
    ballot: Any = None
    heir: object = None
    count: int = 1
    renewing: bool = False
    lost: str = ""
    unreported: list[None] = field(default_factory=partial(list, (None,)))
    event: Any = field(default=None)
    reported: str = ""
    session: Any = None
    kind: Any = None
    runtime: Any = None
    steps: Any = None

    @property
    def renewal_seconds(self) -> float:
        return self.lease_ms / 1000 / RENEWALS_PER_LEASE

    def next_time(self) -> float:
        renew_at = self.renew_at
        if self.renewing or renew_at is None:
            return self.deadline
        return min(renew_at, self.deadline)

    def schedule_renewal(self, at: float) -> None:
        """Let the next renewal be due then, unless it is not to be renewed any more, or not now."""
        if self.renew_at is not None:
            self.renew_at = at

    def limit_lease_ms(self, lease_ms: int, now: float) -> int:
        """Return the part of a lease that begins now and does not go beyond `last_renewal`."""
        return int(min(lease_ms, max(1.0, (self.last_renewal - now) * 1000)))

    def lease_to_ask_ms(self, now: float) -> int:
        """Return the lease a renewal may ask for now; 0: none that ends after the lease it has."""
        seconds = min(self.lease_ms / 1000, self.last_renewal - now)
        return int(seconds * 1000) if now + seconds > self.deadline else 0


class Holdings:
    """The holds of one lock object by owner: the thread or task that acquired them.

    No hold replaces another: an owner has all that were granted to it and not given back. Reading
    takes no mutex, because the tuples are replaced as a whole.

    Args:
        has_ended: Returns whether an owner has ended.
        shared: Whether an owner that has no hold of its own may use those of others.
    """

    def __init__(self, has_ended: Callable[[Any], bool], *, shared: bool = False) -> None:
        self._has_ended = has_ended
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
        if not self._owners:
            return None
        hold = self.own(owner)
        if hold is None and owner is not None:
            for left in self._all():
                if left.heir is owner and self._has_lost_its_owner(left):
                    self.drop(left)
                    self.put(owner, left)
                    return left
        return hold

    def of(self, owner: object) -> Hold | None:
        """Return what an owner may give back: its own; else, if they are shared, the oldest."""
        hold = self.mine(owner)
        if hold is None and self._shared:
            held = self._all()
            live = [other for other in held if not other.lost]
            return min(live or held, key=lambda other: other.since, default=None)
        return hold

    def put(self, owner: object, hold: Hold) -> bool:
        """Note that an owner holds the lock, beside what it has; return whether it is the only."""
        with _guard:
            is_only = not self._owners
            self._holds[owner] = (hold,) if is_only else (*self._holds.get(owner, ()), hold)
            self._owners[hold] = owner
        return is_only

    def rivals(self, hold: Hold) -> list[Hold]:
        return [other for other in self._all() if other is not hold and not other.lost]

    def forget_lost(self, owner: object) -> None:
        for hold in self._holds.get(owner, ())[:-1]:
            if hold.lost:
                self.drop(hold)

    def count_again(self, hold: Hold) -> bool:
        with _guard:
            if hold in self:
                hold.count += 1
            return hold in self

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
            owner = self._forget(hold)
        # A task that nobody else refers to ends here, with its hooks, and no mutex is held.
        del owner
        return 0

    def drop(self, hold: Hold) -> None:
        owner = None
        with _guard:
            if hold in self._owners:
                owner = self._forget(hold)
        del owner

    def _forget(self, hold: Hold) -> object:
        owner = self._owners.pop(hold)
        rest = tuple(other for other in self._holds[owner] if other is not hold)
        if rest:
            self._holds[owner] = rest
        else:
            del self._holds[owner]
        return owner

    def __contains__(self, hold: Hold) -> bool:
        return hold in self._owners

    def owner_of(self, hold: Hold) -> object:
        return self._owners.get(hold)

    def bequeath(self, owner: object, heir: object) -> None:
        """Let an owner's hold be another's once the owner has ended."""
        if (hold := self.own(owner)) is not None:
            hold.heir = heir

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether neither its owner nor its heir is left to give a hold back."""
        heir_is_left = hold.heir is not None and not self._has_ended(hold.heir)
        return not (self._shared or heir_is_left) and self._has_lost_its_owner(hold)

    def _has_lost_its_owner(self, hold: Hold) -> bool:
        owner = self._owners.get(hold)
        return owner is not None and self._has_ended(owner)

    def _all(self) -> list[Hold]:
        pid = os.getpid()
        return [hold for hold in list(self._owners) if hold.pid == pid]


_guard = threading.RLock()


def _start_over() -> None:
    global _guard  # noqa: PLW0603 - another thread may have had it when this process was forked
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_start_over)
