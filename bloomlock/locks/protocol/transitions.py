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
    NOBODY,
    AcquireRequest,
    Announcement,
    Busy,
    Granted,
    LockState,
    ReleaseRequest,
    Waiter,
    deaf,
    read_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Announce = Callable[[Announcement], None]
    Hears = Callable[[bytes], bool]


def acquire(
    state: LockState,
    now_us: int,
    asking: AcquireRequest,
    announce: Announce,
    hears: Hears = lambda _: True,
) -> Granted | Busy:
    """Take the lock, or stand in its queue if `asking.channel` is given.

    Args:
        state: Is changed.
        now_us: The server's time.
        asking: Who asks.
        announce: Is given each grant that is made to a waiter.
        hears: Tells whether a message on a channel reaches anybody.
    """
    _forget(state, now_us)
    granted: dict[bytes, Granted] = {}
    is_behind = bool(state.queue)
    if _holds(state, asking.token, asking.group) or _available(state, asking, is_behind=is_behind):
        return _hold(state, now_us, asking.token, asking.lease_ms, asking.group)
    if asking.channel:
        _enqueue(state, now_us, asking.record, is_heard=_is_heard(asking.channel, hears))

    def note(announcement: Announcement) -> None:
        granted[announcement.token] = announcement.grant
        announce(announcement)

    if state.value is None or asking.group:
        is_behind = _promote(state, now_us, note, hears, asking.record)
        if asking.token in granted:
            # Who is answered need not be announced to, and has the whole lease.
            until_ms = now_us // 1000 + asking.lease_ms
            _set_lease(state, until_ms, asking.token, asking.group, is_new=True)
            return granted[asking.token]
        if not asking.channel and _available(state, asking, is_behind=is_behind):
            return _hold(state, now_us, asking.token, asking.lease_ms, asking.group)
    order = state.in_order()
    position = order.index(asking.record) if asking.record in order else -1
    endless = state.value is None or state.expires_ms == NEVER_MS
    remaining_ms = -1 if endless else state.expires_ms - now_us // 1000
    # The next grant may be made in this very microsecond.
    return Busy(remaining_ms, position, max(state.fence, now_us - 1))


def release(
    state: LockState,
    now_us: int,
    leaving: ReleaseRequest,
    announce: Announce,
    hears: Hears = lambda _: True,
) -> bool:
    """Give up a hold and a place in the queue; tell whether the lock was held.

    The arguments are those of `acquire`.
    """
    token, group, record = leaving
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


def _available(state: LockState, asking: AcquireRequest, *, is_behind: bool) -> bool:
    joinable = bool(asking.group) and state.value == b"=" + asking.group
    if joinable and asking.may_join:
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
    else:
        # A clock that was set back must not put a newcomer before those who wait.
        state.queue[record] = max([now_us, *(ticket + 1 for ticket in state.queue.values())])
    if is_heard:
        state.alive.pop(deaf(record), None)
    else:
        state.alive[deaf(record)] = until_ms


def _is_alive(state: LockState, now_us: int, record: bytes) -> bool:
    until_ms = state.alive.get(record, state.queue[record] // 1000 + LIVENESS_MS)
    return until_ms > now_us // 1000


def _is_heard(channel: bytes, hears: Hears) -> bool:
    # Who listens nowhere looks by itself, and often.
    return channel == NOBODY or hears(channel)


def _is_reached(state: LockState, waiter: Waiter, record: bytes, hears: Hears) -> bool:
    """Tell whether a waiter gets to know of a grant, by the message or by looking.

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
        hears: Tells whether a message on a channel reaches anybody.
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
