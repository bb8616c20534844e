"""What one lock is on the server, as values.

    value     the lock key: the holder's token, or "=group" while the lock is shared by a group
    holders   of a shared lock: token -> server time at which its lease ends
    queue     waiters in the order of asking: record -> ticket
    alive     record -> server time until which a waiter counts as alive, written when it
              comes back; before that its ticket says how long ago it asked. Under `deaf(record)`
              the same for a waiter that no message reached when it last asked
    fence     the last fence given out

A hold belongs to a group or, with the empty group, excludes all others. Holds of one group share
the lock: the readers of a read-write lock, or everybody who calls himself the same owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

SLICE_MS = 2_000
"""A waiter comes back at least this often, and says by it that it is alive."""
LIVENESS_MS = 3 * SLICE_MS
"""A waiter that was not heard of for so long is passed over."""
NEVER_MS = 2**52
"""When a lock that somebody else took without a lease expires."""
FENCE_LIFE_MS = 60_000
"""How long the last fence is kept at least once it is behind the server's clock."""

NOBODY = b"-"
"""The channel of waiters to whom nothing can be announced."""


class AcquireRequest(NamedTuple):
    """Who asks for the lock.

    Attributes:
        token: Nobody else's; fixed before the first byte is sent. Without spaces.
        lease_ms: How long the hold lives without renewal.
        group: Empty: exclusive. Otherwise shared with holds of the same group. Without spaces.
        joins: Whether it may join its own group past waiters (a re-entrant owner must, a
            reader must not, or writers would starve).
        channel: Where to announce a grant; empty: not willing to wait.
        provisional_lease_ms: The lease of a grant that has to be announced; 0: `lease_ms`. A waiter
            that renews keeps others waiting for no longer than this if it died in the queue.
    """

    token: bytes
    lease_ms: int
    group: bytes = b""
    may_join: bool = False
    channel: bytes = b""
    provisional_lease_ms: int = 0

    @property
    def granted_ms(self) -> int:
        """The lease a waiter counts on when it is told of its grant."""
        return min(self.lease_ms, self.provisional_lease_ms or self.lease_ms)

    @property
    def record(self) -> bytes:
        """How this waiter stands in the queue; a grant is one slice longer than its lease.

        The waiter counts its lease from when it last asked, which is at most a slice earlier.
        """
        if not self.channel:
            return b""
        lease_ms = self.granted_ms + SLICE_MS
        return b"%b %d %b %b" % (self.token, lease_ms, self.group or b"-", self.channel)


class ReleaseRequest(NamedTuple):
    """Who gives up a hold, a place in the queue (`record`, or empty), or whichever he has."""

    token: bytes
    group: bytes = b""
    record: bytes = b""


class Waiter(NamedTuple):
    """A record of the queue, read."""

    token: bytes
    lease_ms: int
    group: bytes
    channel: bytes


def read_record(record: bytes) -> Waiter:
    """Return what `Asking.record` wrote.

    >>> read_record(Asking(b"t1", 30_000, channel=b"c1").record)
    Waiter(token=b't1', lease_ms=32000, group=b'', channel=b'c1')
    """
    token, lease_ms, group, channel = record.split(b" ")
    return Waiter(token, int(lease_ms), b"" if group == b"-" else group, channel)


def deaf(record: bytes) -> bytes:
    """Return the member of `alive` that says that no message reaches a waiter."""
    return b"deaf " + record


class Granted(NamedTuple):
    """The lock is held by who asked.

    Attributes:
        fence: Rises with every grant.
        waiters: Whether somebody is waiting behind.
    """

    fence: int
    waiters: bool


class Busy(NamedTuple):
    """Somebody else has the lock.

    Attributes:
        remaining_ms: What is left of the holder's lease; negative: it has none.
        position: How many wait before who asked; -1: not in the queue.
        fence: Every later grant has a higher one. A grant that is announced with no higher one
            was made before this answer, and is over: the holder had been stopped for so long.
    """

    remaining_ms: int
    position: int
    fence: int


class Announcement(NamedTuple):
    """A waiter was given the lock and is to be told.

    Attributes:
        channel: Where it listens.
        token: Whose grant.
        grant: What it was given.
    """

    channel: bytes
    token: bytes
    grant: Granted

    @property
    def payload(self) -> bytes:
        """The message."""
        return b"%b %d %d" % (self.token, self.grant.fence, self.grant.waiters)


def read_payload(payload: bytes) -> tuple[bytes, Granted]:
    """Return whose grant a message announces, and the grant.

    >>> read_payload(Announcement(b"c1", b"t1", Granted(7, True)).payload)
    (b't1', Granted(fence=7, waiters=True))
    """
    token, fence, waiters = payload.split(b" ")
    return token, Granted(int(fence), waiters == b"1")


@dataclass
class LockState:
    """The state of one lock.

    Attributes:
        expires_ms: The server time at which `value` expires.
        fence_expires_ms: The server time at which the last fence is forgotten.
    """

    value: bytes | None = None
    expires_ms: int = 0
    holders: dict[bytes, int] = field(default_factory=dict)
    queue: dict[bytes, int] = field(default_factory=dict)
    alive: dict[bytes, int] = field(default_factory=dict)
    fence: int = 0
    fence_expires_ms: int = NEVER_MS

    def in_order(self) -> list[bytes]:
        """Return the records of the queue, first asked first."""
        return sorted(self.queue, key=lambda record: (self.queue[record], record))
