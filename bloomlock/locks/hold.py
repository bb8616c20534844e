"""Holds: each is one lock or claim as long as one thread or task of this process has it."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from bloomlock.runtime.cluster import server_of_key
from bloomlock.runtime.connections import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.effects import AnyRuntime, Core
    from bloomlock.locks.protocol.steps import LockSteps

    Place = tuple[Any, str, type, Any]
    Renewal = tuple[Any, "Hold", int]  # the lock or claim, its hold, the lease in ms

OUT_OF_LEASE = "its lease ran out before it could be renewed"
RENEWALS_PER_LEASE = 3
LONGEST_RETRY = 1.0


class Watched(Protocol):
    """The interface of a lock or claim for the watchdog."""

    what: str  # "lock" or "claim"
    steps: LockSteps | None = None  # give holds back at the end of the process
    runtime: AnyRuntime

    @property
    def label(self) -> str: ...  # its name in messages

    @property
    def key(self) -> str: ...  # names its server

    def is_orphan(self, hold: Hold) -> bool:  # noqa: ARG002
        """Return whether the thread or task that should give a hold back has ended."""
        return False

    def renew_all(self, renewals: Sequence[Renewal]) -> Core[Sequence[bool | Exception]]:
        """Renew holds of its kind by one request; return for each whether it was held."""

    def renewed(self, hold: Hold) -> None:  # noqa: ARG002
        return

    def lose_behind(self, hold: Hold, reason: str) -> bool:
        """Note that a hold is lost; return whether that is news. Never raises."""


@dataclass(eq=False, slots=True)
class Hold:
    """A hold as this process knows it; its times are seconds by the holder's clock."""

    token: bytes  # no other hold has it
    lease_ms: int  # each renewal asks for it
    fence: int | None
    since: float
    deadline: float  # until when the holder may rely on it
    is_shared: bool = False  # with other readers
    pid: int = field(default_factory=os.getpid)  # the process that has it; a fork's child does not
    renew_at: float | None = None  # None: never
    last_renewal: float = float("inf")  # no renewal extends it beyond this
    ballot: Any = None  # the votes of a Redlock's servers
    owner: Any = None  # the thread or task that has it
    count: int = 1  # how often a re-entrant lock was acquired
    renewing: bool = False  # whether a renewal is under way
    outage: str = ""  # the server that did not answer a renewal, until one succeeds
    lost: str = ""  # why it is lost
    unreported: list[None] = field(default_factory=partial(list, (None,)))  # the reporter pops it
    event: Any = None  # set when it is lost; made at its first use
    # The watchdog sets these. They outlive the lock or claim, whose user may drop it.
    session: Callable[[], Watched | None] = lambda: None  # the lock or claim, None if dropped
    kind: Any = None  # its class
    runtime: Any = None
    loop: asyncio.AbstractEventLoop | None = None  # the task's; None: a thread has it
    steps: Any = None  # None: a claim

    @property
    def renewal_seconds(self) -> float:
        return self.lease_ms / 1000 / RENEWALS_PER_LEASE

    @property
    def retry_seconds(self) -> float:
        return min(LONGEST_RETRY, self.lease_ms / 10_000)

    def key(self) -> str:
        session = self.session()
        return session.key if session is not None else ""

    def label(self) -> str:
        """Return its name in messages; a lock that was dropped is named by its key."""
        session = self.session()
        if session is None:
            return f"lock {self.steps.keys.lock!r}" if self.steps else "a claim"
        return session.label

    def place(self) -> Place:
        """Return the key of holds that one renewal may carry.

        The loop is part of it: one loop after the other may use a client, and the first may not run
        any more.
        """
        server = server_of_key(self.runtime.client, self.key())
        return self.runtime, server, self.kind, self.loop

    def servers(self) -> str:
        """Return the servers that renew it, for messages."""
        found = [
            server_of_key(each.client, self.key())
            or place_of(each.client).partition(", database")[0]
            for each in self.runtime.members
        ]
        return ", ".join(found)

    def next_time(self) -> float:
        renew_at = self.renew_at
        if self.renewing or renew_at is None:
            return self.deadline
        return min(renew_at, self.deadline)

    def is_due(self, at: float) -> bool:
        renew_at = self.renew_at
        return renew_at is not None and renew_at <= at and not self.renewing

    def schedule_renewal(self, at: float) -> None:
        if self.renew_at is not None:
            self.renew_at = at

    def limit_lease_ms(self, lease_ms: int, now: float) -> int:
        """Return the part of a lease that begins now and does not go beyond `last_renewal`."""
        return int(min(lease_ms, max(1.0, (self.last_renewal - now) * 1000)))


_LOCAL = threading.local()


def current_owner() -> object:
    """Return who holds what this thread, or greenlet, acquires: a reference to data of its own.

    The number of a thread is given to another one later, and the threading module takes threads
    that it did not start to be alive for ever.
    """
    owner = getattr(_LOCAL, "owner", None)
    if owner is None:
        _LOCAL.presence = threading.Lock()
        owner = _LOCAL.owner = weakref.ref(_LOCAL.presence)
    return owner


def async_current_owner() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def has_ended(owner: object) -> bool:
    if isinstance(owner, asyncio.Future):
        return owner.done() or owner.get_loop().is_closed()
    return isinstance(owner, weakref.ref) and owner() is None
