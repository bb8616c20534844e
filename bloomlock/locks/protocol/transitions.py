"""How a lock changes: pure functions over its state, with the server's time passed in.

    acquire   mine already: refresh. Free (or shared with my group) and nobody before me: take it.
              Else enqueue me in this same step, and hand the lock on if it is free
    release   give up my hold, leave the queue, hand the lock on; what a cancelled acquire runs too
    renew     extend my hold; never creates one, never shortens its lease

Every step may be repeated and answers the same. The lock is handed on ("promoted") in the step
that frees it; a lock freed by nobody (its lease ran out, its key was deleted) is handed on by
the next step of anybody. scripts/lock_*.lua are these functions on the server, and the tests
hold the two together; where EVAL is forbidden, these run here, under WATCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .state import (
    FENCE_LIFE_MS,
    LIVENESS_MS,
    NEVER_MS,
    Announcement,
    Asking,
    Busy,
    Granted,
    Leaving,
    LockState,
    Waiter,
    read_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Announce = Callable[[Announcement], None]


def acquire(state: LockState, now_us: int, asking: Asking, announce: Announce) -> Granted | Busy:
    """Take the lock, or stand in its queue if `asking.channel` is given."""
    _forget(state, now_us)
    granted: dict[bytes, Granted] = {}
    if _holds(state, asking.token, asking.group) or _available(state, asking):
        return _hold(state, now_us, asking.token, asking.lease_ms, asking.group)
    if asking.channel:
        _enqueue(state, now_us, asking.record)

    def note(announcement: Announcement) -> None:
        granted[announcement.token] = announcement.grant
        announce(announcement)

    if state.value is None or asking.group:
        _promote(state, now_us, note)
        if asking.token in granted:
            # Who is answered need not be announced to, and has the whole lease.
            until_ms = now_us // 1000 + asking.lease_ms
            _set_lease(state, until_ms, asking.token, asking.group, is_new=True)
            return granted[asking.token]
        if not asking.channel and _available(state, asking):
            return _hold(state, now_us, asking.token, asking.lease_ms, asking.group)
    order = state.in_order()
    position = order.index(asking.record) if asking.record in order else -1
    endless = state.value is None or state.expires_ms == NEVER_MS
    remaining_ms = -1 if endless else state.expires_ms - now_us // 1000
    # The next grant may be made in this very microsecond.
    return Busy(remaining_ms, position, max(state.fence, now_us - 1))


def release(state: LockState, now_us: int, leaving: Leaving, announce: Announce) -> bool:
    """Give up a hold and a place in the queue; tell whether the lock was held."""
    token, group, record = leaving
    _forget(state, now_us)
    held = _holds(state, token, group)
    if held and group:
        del state.holders[token]
        _forget(state, now_us)
    elif held:
        state.value = None
    state.queue.pop(record, None)
    state.alive.pop(record, None)
    _promote(state, now_us, announce)
    return held


def renew(state: LockState, now_us: int, token: bytes, group: bytes, lease_ms: int) -> bool:
    """Let a hold live for at least `lease_ms` from now; tell whether it was held."""
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


def _available(state: LockState, asking: Asking) -> bool:
    joinable = bool(asking.group) and state.value == b"=" + asking.group
    if joinable and asking.joins:
        return True
    return (joinable or state.value is None) and not state.queue


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


def _enqueue(state: LockState, now_us: int, record: bytes) -> None:
    if record in state.queue:
        state.alive[record] = now_us // 1000 + LIVENESS_MS
    else:
        # A clock that was set back must not put a newcomer before those who wait.
        state.queue[record] = max([now_us, *(ticket + 1 for ticket in state.queue.values())])


def _is_alive(state: LockState, now_us: int, record: bytes) -> bool:
    until_ms = state.alive.get(record, state.queue[record] // 1000 + LIVENESS_MS)
    return until_ms > now_us // 1000


def _promote(state: LockState, now_us: int, announce: Announce) -> None:
    """Hand a lock that is free to the first waiter alive, and to all of its group."""
    chosen: bytes | None = None
    for record in state.in_order():
        waiter = read_record(record)
        if chosen is None or waiter.group == chosen:
            if not _is_alive(state, now_us, record):
                _leave(state, record)
                continue
            if state.value is not None and not (
                waiter.group and state.value == b"=" + waiter.group
            ):
                return
            chosen = waiter.group
            _leave(state, record)
            _grant(state, now_us, waiter, announce)
            if not waiter.group:
                return


def _leave(state: LockState, record: bytes) -> None:
    del state.queue[record]
    state.alive.pop(record, None)


def _grant(state: LockState, now_us: int, waiter: Waiter, announce: Announce) -> None:
    grant = _hold(state, now_us, waiter.token, waiter.lease_ms, waiter.group)
    announce(Announcement(waiter.channel, waiter.token, grant))
