"""The rules of the lock scripts once more, as pure functions of a state and a time.

The explorer's server is made of them, because time in a script is the server's own. The names are
those of the scripts; tests/locks/protocol/test_scripts.py compares the two step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.locks.protocol.steps import (
    LIVENESS_MS,
    NO_CHANNEL,
    AcquireRequest,
    Busy,
    Granted,
    ReleaseRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Announce = Callable[["Announcement"], None]
    Hears = Callable[[bytes], bool]

SHARED = b"=read"
"""The value of a lock that readers share; a lock with any other value excludes all."""
DEAF = 0.5
"""Added to the time until which a waiter is alive that no message reached when it last asked."""
NEVER_MS = 2**52
"""When a lock expires that another library took without a lease."""


class Waiter(NamedTuple):
    """A record of the queue, read."""

    token: bytes
    lease_ms: int
    is_shared: bool
    channel: bytes


def read_record(record: bytes) -> Waiter:
    """Return what `AcquireRequest.record` wrote."""
    token, lease_ms, kind, channel = record.split(b" ")
    return Waiter(token, int(lease_ms), kind == b"read", channel)


class Announcement(NamedTuple):
    """A waiter was given the lock, which is to be announced on its channel."""

    channel: bytes
    token: bytes
    grant: Granted

    @property
    def payload(self) -> bytes:
        """The message."""
        return b"%b %d" % (self.token, self.grant.fence)


@dataclass
class LockState:
    """The state of one lock; `expires_ms` is the server time at which `value` expires."""

    value: bytes | None = None
    expires_ms: int = 0
    holders: dict[bytes, int] = field(default_factory=dict)
    queue: dict[bytes, int] = field(default_factory=dict)
    alive: dict[bytes, float] = field(default_factory=dict)
    fence: int = 0

    def copy(self) -> LockState:
        parts = [dict(part) for part in (self.holders, self.queue, self.alive)]
        return LockState(self.value, self.expires_ms, *parts, self.fence)

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
    """Take the lock, or stand in its queue if `request.channel` is given; `state` is changed.

    `announce` is given each grant that is made to a waiter; `hears` returns whether a message on a
    channel reaches a client.
    """
    _forget(state, now_us)
    granted: dict[bytes, Granted] = {}
    is_behind = was_queue = bool(state.queue)
    asked = request.token, request.is_shared
    if _holds(state, *asked) or (not is_behind and _is_available(state, request.is_shared)):
        return _hold(state, now_us, *asked, request.lease_ms)
    is_new = request.record not in state.queue
    if request.channel:
        is_reached = _is_reached(request.channel, hears)
        _enqueue(state, now_us, request.record, 0 if is_reached else DEAF)

    def note(announcement: Announcement) -> None:
        granted[announcement.token] = announcement.grant
        announce(announcement)

    if _is_available(state, request.is_shared):
        is_behind = _promote(state, now_us, note, hears, request.record)
        if request.token in granted:
            # Who is answered need not be announced to, and has the whole lease.
            _set_lease(state, now_us // 1000 + request.lease_ms, *asked, is_new=True)
            return granted[request.token]
        if not request.channel and not is_behind and _is_available(state, request.is_shared):
            return _hold(state, now_us, *asked, request.lease_ms)
    order = state.in_order()
    position = order.index(request.record) if request.record in order else -1
    if is_new and request.channel:
        position = int(was_queue)
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
    """Give up a hold and a place in the queue; return whether the lock was held."""
    token, is_shared, record = request
    _forget(state, now_us)
    held = _holds(state, token, is_shared)
    if held and is_shared:
        del state.holders[token]
        _forget(state, now_us)
    elif held:
        state.value = None
    _leave(state, record)
    _promote(state, now_us, announce, hears)
    return held


def renew(state: LockState, now_us: int, token: bytes, is_shared: bool, lease_ms: int) -> bool:
    """Let a hold live for at least `lease_ms` from now; return whether it was held."""
    _forget(state, now_us)
    held = _holds(state, token, is_shared)
    if held:
        _set_lease(state, now_us // 1000 + lease_ms, token, is_shared)
    return held


def _forget(state: LockState, now_us: int) -> None:
    """Drop what has expired, and holders whose lock is gone."""
    now_ms = now_us // 1000
    if state.value is not None and state.expires_ms <= now_ms:
        state.value = None
    is_shared = state.value == SHARED
    state.holders = {
        token: until for token, until in state.holders.items() if is_shared and until > now_ms
    }
    if is_shared and not state.holders:
        state.value = None
    elif is_shared:
        state.expires_ms = max(state.holders.values())


def _holds(state: LockState, token: bytes, is_shared: bool) -> bool:
    if is_shared:
        return state.value == SHARED and token in state.holders
    return state.value == token


def _is_available(state: LockState, is_shared: bool) -> bool:
    return state.value is None or (is_shared and state.value == SHARED)


def _set_lease(
    state: LockState, until_ms: int, token: bytes, is_shared: bool, *, is_new: bool = False
) -> None:
    """Let a hold live until then, or as long as it does already.

    Refreshing never shortens a lease: it may be a late copy of an earlier request. A hold that
    was granted in this very step has exactly the lease that is given.
    """
    if is_shared:
        state.value = SHARED
        before_ms = 0 if is_new else state.holders.get(token, 0)
        state.holders[token] = max(until_ms, before_ms)
        state.expires_ms = max(state.holders.values())
    elif is_new or state.value != token or not until_ms < state.expires_ms < NEVER_MS:
        state.value = token
        state.expires_ms = until_ms


def _hold(state: LockState, now_us: int, token: bytes, is_shared: bool, lease_ms: int) -> Granted:
    _set_lease(state, now_us // 1000 + lease_ms, token, is_shared)
    state.fence = max(state.fence + 1, now_us)
    return Granted(state.fence)


def _enqueue(state: LockState, now_us: int, record: bytes, mark: float) -> None:
    if record in state.queue or mark:
        state.alive[record] = now_us // 1000 + LIVENESS_MS + mark
    if record not in state.queue:
        # A clock that was set back must not put a newcomer before those who wait.
        state.queue[record] = max([now_us, *(ticket + 1 for ticket in state.queue.values())])


def _is_reached(channel: bytes, hears: Hears) -> bool:
    # Who listens nowhere looks by itself, and often.
    return channel == NO_CHANNEL or hears(channel)


def _promote(
    state: LockState, now_us: int, announce: Announce, hears: Hears, asker: bytes = b""
) -> bool:
    """Hand a lock that is free to the first waiter alive, a reader's to all readers.

    Returns whether any waiter goes before a newcomer. `asker` is the record of who is answered in
    this step, so that no message is needed.
    """
    is_granted = is_behind = False
    for record in state.in_order():
        waiter = read_record(record)
        until_ms = state.alive.get(record, state.queue[record] // 1000 + LIVENESS_MS)
        is_reached = until_ms % 1 == DEAF or _is_reached(waiter.channel, hears)
        if is_granted and not waiter.is_shared:
            is_behind = True
        elif until_ms <= now_us // 1000:
            _leave(state, record)
        # Who could be reached when it last asked and cannot any more keeps its place.
        elif record == asker or is_reached:
            if not _is_available(state, waiter.is_shared):
                return True
            is_granted = True
            _leave(state, record)
            grant = _hold(state, now_us, waiter.token, waiter.is_shared, waiter.lease_ms)
            announce(Announcement(waiter.channel, waiter.token, grant))
            if not waiter.is_shared:
                return True
    return is_behind


def _leave(state: LockState, record: bytes) -> None:
    state.queue.pop(record, None)
    state.alive.pop(record, None)
