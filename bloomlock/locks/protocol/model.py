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
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.effects import make

if TYPE_CHECKING:
    from collections.abc import Callable

    Announce = Callable[["Announcement"], None]
    Hears = Callable[[bytes], bool]

SLICE_MS = 2_000
"""A waiter comes back at least this often, and says by it that it is alive."""
LIVENESS_MS = 3 * SLICE_MS
"""A waiter that was not heard of for so long is passed over."""
NEVER_MS = 2**52
"""When a lock expires that another library took without a lease."""
FENCE_LIFE_MS = 60_000
"""How long the last fence is kept at least once it is behind the server's clock."""

NO_CHANNEL = b"-"
"""The channel of waiters to whom nothing can be announced."""


class AcquireRequest(NamedTuple):
    """Who asks for the lock.

    Attributes:
        token: No other client has it; fixed before the first byte is sent. Without spaces.
        lease_ms: How long the hold lives without renewal.
        group: Empty: exclusive. Otherwise shared with holds of the same group. Without spaces.
        may_join: Whether it may join its own group past waiters (a re-entrant owner must, a
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

    def listening(self, channel: bytes) -> AcquireRequest:
        """Return the same request with a channel."""
        return make(AcquireRequest, (*self[:4], channel, self[5]))

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
        """How this waiter stands in the queue."""
        if not self.channel:
            return b""
        return b"%b %d %b %b" % (self.token, self.queued_ms, self.group or b"-", self.channel)


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
    """Return what `AcquireRequest.record` wrote.

    >>> read_record(AcquireRequest(b"t1", 30_000, channel=b"c1").record)
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
        waiters: Whether a client is waiting behind.
    """

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


class Announcement(NamedTuple):
    """A waiter was given the lock, which is to be announced.

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


def read_fence(payload: bytes) -> int:
    """Return the fence of the grant that a message announces.

    >>> read_fence(Announcement(b"c1", b"t1", Granted(7, True)).payload)
    7
    """
    return int(payload.split(b" ")[1])


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


def acquire(
    state: LockState,
    now_us: int,
    request: AcquireRequest,
    announce: Announce,
    hears: Hears = lambda _: True,
) -> Granted | Busy:
    """Take the lock, or stand in its queue if `request.channel` is given.

    Args:
        state: Is changed.
        now_us: The server's time.
        request: Who asks.
        announce: Is given each grant that is made to a waiter.
        hears: Returns whether a message on a channel reaches a client.
    """
    _forget(state, now_us)
    granted: dict[bytes, Granted] = {}
    is_behind = bool(state.queue)
    if _holds(state, request.token, request.group) or _available(
        state, request, is_behind=is_behind
    ):
        return _hold(state, now_us, request.token, request.lease_ms, request.group)
    is_new = request.record not in state.queue
    if request.channel:
        _enqueue(state, now_us, request.record, is_heard=_is_heard(request.channel, hears))

    def note(announcement: Announcement) -> None:
        granted[announcement.token] = announcement.grant
        announce(announcement)

    if state.value is None or request.group:
        is_behind = _promote(state, now_us, note, hears, request.record)
        if request.token in granted:
            # Who is answered need not be announced to, and has the whole lease.
            until_ms = now_us // 1000 + request.lease_ms
            _set_lease(state, until_ms, request.token, request.group, is_new=True)
            return granted[request.token]
        if not request.channel and _available(state, request, is_behind=is_behind):
            return _hold(state, now_us, request.token, request.lease_ms, request.group)
    order = state.in_order()
    position = order.index(request.record) if request.record in order else -1
    if is_new:
        position = min(position, 1)
    endless = state.value is None or state.expires_ms == NEVER_MS
    remaining_ms = -1 if endless else state.expires_ms - now_us // 1000
    # The next grant may be made in this very microsecond.
    return Busy(remaining_ms, position, max(state.fence, now_us - 1))


def release(
    state: LockState,
    now_us: int,
    request: ReleaseRequest,
    announce: Announce,
    hears: Hears = lambda _: True,
) -> bool:
    """Give up a hold and a place in the queue; return whether the lock was held.

    The arguments are those of `acquire`.
    """
    token, group, record = request
    _forget(state, now_us)
    held = _holds(state, token, group)
    if held and group:
        del state.holders[token]
        _forget(state, now_us)
    elif held:
        state.value = None
    _leave(state, record)
    _promote(state, now_us, announce, hears)
    return held


def renew(state: LockState, now_us: int, token: bytes, group: bytes, lease_ms: int) -> bool:
    """Let a hold live for at least `lease_ms` from now; return whether it was held."""
    _forget(state, now_us)
    held = _holds(state, token, group)
    if held:
        _set_lease(state, now_us // 1000 + lease_ms, token, group)
    return held


def fence_life_ms(lease_ms: int, ahead_ms: int) -> int:
    """Return how long a fence is kept.

    Args:
        lease_ms: Of the hold it was given to.
        ahead_ms: By how much it is ahead of the server's clock, which was set back then; such a
            fence is kept until it is behind.
    """
    return max(FENCE_LIFE_MS, 2 * lease_ms) + max(0, ahead_ms)


def _forget(state: LockState, now_us: int) -> None:
    """Drop what has expired, and holders whose lock is gone."""
    now_ms = now_us // 1000
    if state.fence_expires_ms <= now_ms:
        state.fence = 0
    if state.value is not None and state.expires_ms <= now_ms:
        state.value = None
    shared = state.value is not None and state.value.startswith(b"=")
    state.holders = {
        token: until for token, until in state.holders.items() if shared and until > now_ms
    }
    if shared and not state.holders:
        state.value = None
    elif shared:
        state.expires_ms = max(state.holders.values())


def _holds(state: LockState, token: bytes, group: bytes) -> bool:
    if group:
        return state.value == b"=" + group and token in state.holders
    return state.value == token


def _available(state: LockState, request: AcquireRequest, *, is_behind: bool) -> bool:
    joinable = bool(request.group) and state.value == b"=" + request.group
    if joinable and request.may_join:
        return True
    return (joinable or state.value is None) and not is_behind


def _set_lease(
    state: LockState, until_ms: int, token: bytes, group: bytes, *, is_new: bool = False
) -> None:
    """Let a hold live until then, or as long as it does already.

    Refreshing never shortens a lease: it may be a late copy of an earlier request. A hold that
    was granted in this very step has exactly the lease that is given.
    """
    if group:
        state.value = b"=" + group
        before_ms = 0 if is_new else state.holders.get(token, 0)
        state.holders[token] = max(until_ms, before_ms)
        state.expires_ms = max(state.holders.values())
    elif is_new or state.value != token or not until_ms < state.expires_ms < NEVER_MS:
        state.value = token
        state.expires_ms = until_ms


def _hold(state: LockState, now_us: int, token: bytes, lease_ms: int, group: bytes) -> Granted:
    _set_lease(state, now_us // 1000 + lease_ms, token, group)
    now_ms = now_us // 1000
    state.fence = max(state.fence + 1, now_us)
    state.fence_expires_ms = now_ms + fence_life_ms(lease_ms, state.fence // 1000 - now_ms)
    return Granted(state.fence, bool(state.queue))


def _enqueue(state: LockState, now_us: int, record: bytes, *, is_heard: bool) -> None:
    until_ms = now_us // 1000 + LIVENESS_MS
    if record in state.queue:
        state.alive[record] = until_ms
        if is_heard:
            state.alive.pop(deaf(record), None)
    else:
        # A clock that was set back must not put a newcomer before those who wait.
        state.queue[record] = max([now_us, *(ticket + 1 for ticket in state.queue.values())])
    if not is_heard:
        state.alive[deaf(record)] = until_ms


def _is_alive(state: LockState, now_us: int, record: bytes) -> bool:
    until_ms = state.alive.get(record, state.queue[record] // 1000 + LIVENESS_MS)
    return until_ms > now_us // 1000


def _is_heard(channel: bytes, hears: Hears) -> bool:
    # Who listens nowhere looks by itself, and often.
    return channel == NO_CHANNEL or hears(channel)


def _is_reached(state: LockState, waiter: Waiter, record: bytes, hears: Hears) -> bool:
    """Return whether a waiter learns of a grant, by the message or by looking.

    One who was reached when it last asked and is not any more keeps its place; it is dead, or
    comes back by itself.
    """
    return _is_heard(waiter.channel, hears) or deaf(record) in state.alive


def _promote(
    state: LockState, now_us: int, announce: Announce, hears: Hears, asker: bytes = b""
) -> bool:
    """Hand a lock that is free to the first waiter alive, and to all of its group.

    Args:
        state: Is changed.
        now_us: The server's time.
        announce: Is given the grants.
        hears: Returns whether a message on a channel reaches a client.
        asker: The record of who is answered in this step, so that no message is needed.

    Returns:
        Whether any waiter goes before a newcomer.
    """
    chosen: bytes | None = None
    is_behind = False
    for record in state.in_order():
        waiter = read_record(record)
        if chosen is not None and waiter.group != chosen:
            is_behind = True
        elif not _is_alive(state, now_us, record):
            _leave(state, record)
        elif record == asker or _is_reached(state, waiter, record, hears):
            if state.value is not None and not (
                waiter.group and state.value == b"=" + waiter.group
            ):
                return True
            chosen = waiter.group
            _leave(state, record)
            _grant(state, now_us, waiter, announce)
            if not waiter.group:
                return True
    return is_behind


def _leave(state: LockState, record: bytes) -> None:
    state.queue.pop(record, None)
    state.alive.pop(record, None)
    state.alive.pop(deaf(record), None)


def _grant(state: LockState, now_us: int, waiter: Waiter, announce: Announce) -> None:
    grant = _hold(state, now_us, waiter.token, waiter.lease_ms, waiter.group)
    announce(Announcement(waiter.channel, waiter.token, grant))
