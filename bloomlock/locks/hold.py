"""Holds: each is one lock as long as one thread or task of this process has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
        heir: Who has it after its owner has ended; None: no other.
        count: How often a re-entrant lock was acquired.
        renewing: Whether a renewal is on its way.
        lost: Why it is lost; empty: it is not.
        unreported: Emptied by the thread that reports that it is lost.
        event: Set when it is lost; made at its first use.
        reported: Kind of the event that was reported of it last; empty: none.
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
    heir: object = None
    count: int = 1
    renewing: bool = False
    lost: str = ""
    unreported: list[None] = field(default_factory=partial(list, (None,)))
    event: Any = field(default=None)
    reported: str = ""

    @property
    def renewal_seconds(self) -> float:
        """After how long it is renewed."""
        return self.lease_ms / 1000 / RENEWALS_PER_LEASE

    def schedule_renewal(self, at: float) -> None:
        """Let the next renewal be due then, unless it is not to be renewed any more, or not now."""
        if self.renew_at is not None:
            self.renew_at = at

    def limit_lease_ms(self, lease_ms: int, now: float) -> int:
        """Return the part of a lease that begins now and does not go beyond `last_renewal`."""
        return int(min(lease_ms, max(1.0, (self.last_renewal - now) * 1000)))

    def lease_to_ask_ms(self, now: float) -> int:
        """Return the lease a renewal may ask for now; 0: it may not be renewed any more.

        Never one that would end earlier than the lease it has.
        """
        seconds = min(self.lease_ms / 1000, self.last_renewal - now)
        return int(seconds * 1000) if now + seconds > self.deadline else 0
