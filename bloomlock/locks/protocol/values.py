"""What clients and the server tell each other about one lock; docs/internals/format.md."""

from __future__ import annotations

from typing import NamedTuple

from bloomlock.effects import make

SLICE_MS = 2_000
"""A waiter comes back at least this often, and says by it that it is alive."""
LIVENESS_MS = 3 * SLICE_MS
"""A waiter that was not heard of for so long is passed over; lock_start.lua has the same number."""
NO_CHANNEL = b"-"
"""The channel of waiters to whom nothing can be announced."""
SHARED = b"=read"
"""The value of a lock that readers share; a lock with any other value excludes all."""


def word_of(is_shared: bool) -> bytes:
    return b"read" if is_shared else b"-"


class AcquireRequest(NamedTuple):
    """Who asks for the lock.

    Attributes:
        token: No other client has it; fixed before the first byte is sent. Without spaces.
        channel: Where to announce a grant; empty: not willing to wait.
        provisional_lease_ms: The lease of a grant that has to be announced; 0: `lease_ms`. A waiter
            that renews keeps others waiting for no longer than this if it died in the queue.
    """

    token: bytes
    lease_ms: int
    is_shared: bool = False
    channel: bytes = b""
    provisional_lease_ms: int = 0

    def listening(self, channel: bytes) -> AcquireRequest:
        return make(AcquireRequest, (*self[:3], channel, self[4]))

    @property
    def granted_ms(self) -> int:
        """The lease a waiter counts on when its grant is announced."""
        return min(self.lease_ms, self.provisional_lease_ms or self.lease_ms)

    @property
    def queued_ms(self) -> int:
        """The lease that the server gives when it announces the grant: one slice longer.

        The waiter counts its lease from when it last asked, which is at most a slice earlier.
        """
        return self.granted_ms + SLICE_MS

    @property
    def record(self) -> bytes:
        """How this waiter stands in the queue; lock_acquire_plain.lua makes the same."""
        if not self.channel:
            return b""
        return b"%b %d %b %b" % (self.token, self.queued_ms, word_of(self.is_shared), self.channel)


class ReleaseRequest(NamedTuple):
    """Who gives up a hold, a place in the queue (`record`, or empty), or whichever he has."""

    token: bytes
    is_shared: bool = False
    record: bytes = b""


class Granted(NamedTuple):
    """The lock is held by who asked; `waiters`: whether a client is waiting behind."""

    fence: int
    waiters: bool


class Busy(NamedTuple):
    """Another client has the lock.

    Attributes:
        remaining_ms: What is left of the holder's lease; negative: it has none.
        position: How many wait before who asked, of a newcomer only whether any does, as 1 or 0;
            -1: not in the queue.
        fence: Every later grant has a higher one. A grant that is announced with no higher one
            was made before this answer, and is over: the holder had been stopped for so long.
    """

    remaining_ms: int
    position: int
    fence: int
