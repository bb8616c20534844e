"""A rule of the protocol under WATCH, for servers that run no scripts for a client.

The state is read, changed here by the rules of model.py, and written by EXEC, which does nothing if
the lock changed or expired since it was read; then all is done again. That there is nothing to
write is also only believed after an EXEC: the keys are read one by one, and other clients may have
changed the lock in between. Grants are announced after EXEC, never before it is known to have
happened.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import redis.exceptions

from bloomlock.commands import EXEC, MULTI, encode_command
from bloomlock.delivery import check, deliver
from bloomlock.effects import ConnectionLost, Core, Pause, Request
from bloomlock.refusals import is_slot_refusal

from .model import LIVENESS_MS, NEVER_MS, NO_CHANNEL, LockState, read_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from bloomlock.keys import LockKeys

    from .model import Announce, Announcement, Hears

    Transition = Callable[[LockState, int, Announce, Hears], "T"]

T = TypeVar("T")

TRIES = 200
SHORTEST_PAUSE = 0.0005
LONGEST_PAUSE = 0.05


def run_optimistically(
    keys: LockKeys,
    transition: Transition[T],
    *,
    channel: bytes | None = b"",
    after: bytes | None = None,
    repeatable: bool = True,
) -> Core[tuple[T, Any]]:
    """Carry out a transition on the server; two round trips, more when others are as quick.

    One more where there are waiters: whom a message reaches is asked before a grant is made.

    Args:
        keys: Of the lock.
        transition: Changes the state, given the server's time, where to announce grants, and
            which channels are heard.
        channel: Where the asker listens, empty: nowhere; None: no grant is made in any case.
        after: A command to send behind EXEC on the same connection.
        repeatable: Whether to do all again when the reply to EXEC is lost.

    Returns:
        What the transition returns, and the reply to `after`.

    Raises:
        redis.exceptions.WatchError: If others were quicker all the time.
        ConnectionLost: If the reply to EXEC was lost and it may not be repeated.
    """
    pause = SHORTEST_PAUSE
    refused: Exception | None = None
    for _ in range(TRIES):
        now_us, state = yield from _read(keys)
        announcements: list[Announcement] = []
        before = deepcopy(state)
        try:
            hears = yield from _listeners(keys, state, channel)
        except ConnectionLost:
            # What was read is watched no more.
            yield Pause(pause)
            continue
        result = transition(state, now_us, announcements.append, hears)
        writes = _changes(keys, before, state, now_us // 1000)
        commands = [MULTI, *writes, EXEC]
        if after:
            commands.append(after)
        try:
            # What was read is watched on this very connection; a new one would watch nothing.
            replies = yield Request(keys.lock, commands)
        except ConnectionLost:
            if not repeatable:
                raise
            replies = [None] * len(commands)
        refused = next(filter(is_slot_refusal, replies), None)
        if refused is not None:
            # It moves, and nothing was done; the next WATCH waits until some of it is elsewhere.
            yield Pause(LONGEST_PAUSE)
            continue
        check(replies)
        done = replies[len(writes) + 1]
        if done is not None:
            yield from _announce(keys, announcements)
            return result, replies[-1] if after else None
        yield Pause(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    raise refused or redis.exceptions.WatchError(f"the lock at {keys.lock!r} changes too often")


def _read(keys: LockKeys) -> Core[tuple[int, LockState]]:
    commands = [
        ("WATCH", *keys),
        ("TIME",),
        ("GET", keys.lock),
        ("PTTL", keys.lock),
        ("ZRANGE", keys.holders, 0, -1, "WITHSCORES"),
        ("ZRANGE", keys.queue, 0, -1, "WITHSCORES"),
        ("ZRANGE", keys.alive, 0, -1, "WITHSCORES"),
        ("GET", keys.fence),
    ]
    request = Request(keys.lock, [encode_command(*command) for command in commands], hold=True)
    replies = check((yield from deliver(request, repeatable=True)))
    _, time, value, ttl_ms, holders, queue, alive, fence = replies
    now_us = int(time[0]) * 1_000_000 + int(time[1])
    expires_ms = now_us // 1000 + ttl_ms if ttl_ms >= 0 else NEVER_MS
    state = LockState(
        value, expires_ms, _scores(holders), _scores(queue), _scores(alive), int(fence or 0)
    )
    return now_us, state


def _listeners(keys: LockKeys, state: LockState, asker: bytes | None) -> Core[Hears]:
    """Ask which waiters a message reaches; all, if the server does not answer that."""
    channels = {read_record(record).channel for record in state.queue} | {asker or b""}
    channels -= {b"", NO_CHANNEL}
    if asker is None or not channels:
        return lambda _: True
    command = encode_command("PUBSUB", "NUMSUB", *channels)
    request = Request(keys.lock, (command,), hold=True)
    [reply] = yield request
    if isinstance(reply, Exception):
        return lambda _: True
    counts = dict(
        reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    )
    return lambda channel: counts.get(channel, 1) != 0


def _scores(reply: list[Any]) -> dict[bytes, int]:
    """Read members and scores, which stand in pairs with RESP3 and flat with RESP2."""
    if reply and isinstance(reply[0], (list, tuple)):
        return {member: int(float(score)) for member, score in reply}
    return {reply[i]: int(float(reply[i + 1])) for i in range(0, len(reply), 2)}


def _changes(keys: LockKeys, before: LockState, state: LockState, now_ms: int) -> list[bytes]:
    """Return the commands that make the server's state the new one."""
    writes: list[bytes] = []
    lease_ms = state.expires_ms - now_ms
    if state.value is None:
        if before.value is not None:
            writes.append(encode_command("DEL", keys.lock))
    elif state.value != before.value:
        writes.append(encode_command("SET", keys.lock, state.value, "PX", lease_ms))
    elif state.expires_ms != before.expires_ms:
        # Not SET: a server without memory refuses that, and would take the lock from its holder.
        writes.append(encode_command("PEXPIRE", keys.lock, lease_ms))
    writes += _write_scores(keys.holders, before.holders, state.holders, lease_ms)
    writes += _write_scores(keys.queue, before.queue, state.queue, 2 * LIVENESS_MS)
    writes += _write_scores(keys.alive, before.alive, state.alive, 2 * LIVENESS_MS)
    if state.alive != before.alive and state.queue:
        writes.append(encode_command("PEXPIRE", keys.queue, 2 * LIVENESS_MS))
    if state.fence != before.fence:
        life_ms = state.fence_expires_ms - now_ms
        writes.append(encode_command("SET", keys.fence, state.fence, "PX", life_ms))
    return writes


def _write_scores(
    key: str, before: dict[bytes, int], after: dict[bytes, int], life_ms: int
) -> list[bytes]:
    writes = []
    if gone := before.keys() - after.keys():
        writes.append(encode_command("ZREM", key, *gone))
    changed = [(m, score) for m, score in after.items() if before.get(m) != score]
    if changed:
        pairs = [part for member, score in changed for part in (score, member)]
        writes.append(encode_command("ZADD", key, *pairs))
        writes.append(encode_command("PEXPIRE", key, life_ms))
    return writes


def _announce(keys: LockKeys, announcements: list[Announcement]) -> Core[None]:
    if announcements:
        commands = [encode_command("PUBLISH", a.channel, a.payload) for a in announcements]
        try:
            # Repeating a PUBLISH is harmless. An error is ignored: a waiter that is not reached
            # looks by itself.
            yield from deliver(Request(keys.lock, commands), repeatable=True)
        except ConnectionLost:
            return
