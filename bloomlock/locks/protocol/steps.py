"""The steps of the protocol against a server, in whichever way it allows.

    acquire   a script; WATCH where EVAL is forbidden
    release   compare-and-delete where the server has it (DELIFEQ: Valkey 9.0, DELEX: Redis 8.4)
              and nobody is known to wait; else a script; else WATCH
    renew     a script; WATCH where EVAL is forbidden

What a server has is found by trying, once for each client. Every step may be repeated.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import redis.exceptions

from bloomlock.effects import (
    ConnectionLost,
    Core,
    Request,
    ask,
    check,
    deliver,
    encode_arguments,
    encode_command,
)
from bloomlock.scripts import Script

from . import transitions
from .abilities import lacks_command, raise_error
from .optimistic import run_optimistically
from .state import AcquireRequest, Busy, Granted, LockState, ReleaseRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import LockKeys

    from .abilities import Abilities
    from .optimistic import Transition

ACQUIRE = Script("lock_common", "lock_acquire")
RELEASE = Script("lock_common", "lock_release")
ACQUIRE_ARGUMENTS = 5


class LockSteps:
    """The steps for the lock at some keys.

    Args:
        keys: Its keys.
        abilities: What is known of the server, shared by all locks over one client.
    """

    def __init__(self, keys: LockKeys, abilities: Abilities) -> None:
        """Keep both."""
        self.keys = keys
        self._abilities = abilities
        self._exists = encode_command("EXISTS", keys.queue)
        self._encoded: tuple[tuple[int, bytes, bool] | None, bytes, bytes] = None, b"", b""

    @cached_property
    def _release_head(self) -> bytes:
        return RELEASE.head(self.keys, len(ReleaseRequest._fields))

    def _acquire_command(self, asking: AcquireRequest) -> bytes:
        token, lease_ms, group, may_join, *_ = asking
        encoded = self._encoded
        if encoded[0] != (lease_ms, group, may_join):
            # Encoded once, because it does not change from one acquire to the next.
            head = ACQUIRE.head(self.keys, ACQUIRE_ARGUMENTS)
            middle = encode_arguments(*arguments(asking)[1:4])
            encoded = self._encoded = (lease_ms, group, may_join), head, middle
        # Read once: another thread may ask with another lease meanwhile.
        _, head, middle = encoded
        record = asking.record
        return b"%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
            head,
            len(token),
            token,
            middle,
            len(record),
            record,
        )

    def acquire(self, asking: AcquireRequest) -> Core[Granted | Busy]:
        """Take the lock or stand in its queue; one round trip."""
        if self._abilities.scripts:
            request = Request(self.keys.lock, (self._acquire_command(asking),))
            [reply] = yield from deliver(request, repeatable=True)
            if not isinstance(reply, Exception):
                return read_answer(reply)
            if not isinstance(reply, redis.exceptions.NoScriptError) and not lacks_command(reply):
                raise reply
        [answer] = yield from acquire_all([(self.keys, asking)], self._abilities)
        return answer

    def confirm(
        self, asking: AcquireRequest, replicas: int, wait_ms: int
    ) -> Core[tuple[Granted, int]]:
        """Write a hold anew and tell how many replicas have it (WAIT); one round trip.

        WAIT speaks of what its own connection wrote, and the grant may have been another's.
        """
        wait = encode_command("WAIT", replicas, wait_ms)
        if self._abilities.scripts:
            take = ACQUIRE.by_source(self.keys, arguments(asking))
            request = Request(self.keys.lock, (take, wait))
            reply, count = check((yield from deliver(request, repeatable=True)))
            answer = read_answer(reply)
        else:
            answer, count = yield from run_optimistically(
                self.keys,
                transition_to_acquire(asking),
                channel=asking.channel,
                after=wait,
            )
        if isinstance(answer, Busy):
            return Granted(0, waiters=True), 0
        return answer, int(count)

    def release(self, leaving: ReleaseRequest, *, waiters: bool) -> Core[bool | None]:
        """Give up a hold and a place in the queue, and hand the lock on.

        Args:
            leaving: Who gives up what.
            waiters: Whether somebody is known to wait.

        Returns:
            Whether the lock was held; None: not known, a first try may have released it.
            One round trip; two if somebody waits who was not known.
        """
        repeated = False
        if self._abilities.compare_and_delete and not (waiters or leaving.group or leaving.record):
            try:
                replies = yield from self._compare_and_delete(leaving.token)
            except ConnectionLost as lost:
                repeated = lost.sent
            else:
                if replies is not None:
                    deleted, queue = replies
                    if queue:
                        # It is free already: whom this does not reach looks by itself.
                        with contextlib.suppress(ConnectionLost):
                            yield from self._release(leaving)
                    return bool(deleted)
        if not repeated:
            try:
                return (yield from self._release(leaving, repeatable=False))
            except ConnectionLost as lost:
                repeated = lost.sent
        held = yield from self._release(leaving)
        return held or (None if repeated else False)

    def is_held(self, token: bytes, group: bytes) -> Core[bool]:
        """Tell whether a hold is in force; one round trip."""
        value, until_ms, (seconds, us) = yield from ask(
            self.keys.lock,
            encode_command("GET", self.keys.lock),
            encode_command("ZSCORE", self.keys.holders, token),
            encode_command("TIME"),
        )
        if not group:
            return bool(value == token)
        # Others of the group may keep the lock longer than this hold lives.
        now_ms = int(seconds) * 1000 + int(us) // 1000
        return bool(value == b"=" + group and until_ms and float(until_ms) > now_ms)

    def value(self) -> Core[bytes | None]:
        """Return the value of the lock's key; one round trip."""
        [value] = yield from ask(self.keys.lock, encode_command("GET", self.keys.lock))
        held: bytes | None = value
        return held

    def _compare_and_delete(self, token: bytes) -> Core[Sequence[Any] | None]:
        """Return (deleted, whether there is a queue), or None if the server has no such command."""
        while name := self._abilities.compare_and_delete:
            condition = (token,) if name == "DELIFEQ" else ("IFEQ", token)
            commands = (encode_command(name, self.keys.lock, *condition), self._exists)
            replies = yield from deliver(Request(self.keys.lock, commands), repeatable=False)
            if not lacks_command(replies[0]):
                return check(replies)
            self._abilities.missing_delete()
        return None

    def _release(self, leaving: ReleaseRequest, *, repeatable: bool = True) -> Core[bool]:
        if self._abilities.scripts:
            command = self._release_head + encode_arguments(*leaving)
            request = Request(self.keys.lock, (command,))
            [reply] = yield from deliver(request, repeatable=repeatable)
            if isinstance(reply, redis.exceptions.NoScriptError):
                [reply] = yield from RELEASE.call([(self.keys, leaving)], repeatable=repeatable)
            if not lacks_command(reply):
                return bool(raise_error(reply))
            self._abilities.scripts = False

        def transition(
            state: LockState, now_us: int, tell: transitions.Announce, hears: transitions.Hears
        ) -> bool:
            return transitions.release(state, now_us, leaving, tell, hears)

        held, _ = yield from run_optimistically(self.keys, transition, repeatable=repeatable)
        return held


def acquire_all(
    wanted: Sequence[tuple[LockKeys, AcquireRequest]], abilities: Abilities
) -> Core[list[Granted | Busy]]:
    """Take locks that lie in one slot, in one round trip; the answers in order."""
    if abilities.scripts:
        calls = [(keys, arguments(asking)) for keys, asking in wanted]
        replies = yield from ACQUIRE.call(calls, repeatable=True)
        if not any(lacks_command(reply) for reply in replies):
            return [read_answer(raise_error(reply)) for reply in replies]
        abilities.scripts = False
    answers = []
    for keys, asking in wanted:
        transition = transition_to_acquire(asking)
        answer, _ = yield from run_optimistically(keys, transition, channel=asking.channel)
        answers.append(answer)
    return answers


def transition_to_acquire(asking: AcquireRequest) -> Transition[Granted | Busy]:
    """Return the transition of `acquire`, for `run_optimistically`."""

    def transition(
        state: LockState, now_us: int, tell: transitions.Announce, hears: transitions.Hears
    ) -> Granted | Busy:
        return transitions.acquire(state, now_us, asking, tell, hears)

    return transition


def arguments(asking: AcquireRequest) -> tuple[bytes | int, ...]:
    """Return the ARGV of lock_acquire.lua."""
    return asking.token, asking.group, asking.lease_ms, int(asking.may_join), asking.record


def read_answer(reply: Any) -> Granted | Busy:
    """Return what lock_acquire.lua replied, read."""
    if reply[0]:
        return Granted(int(reply[1]), bool(reply[2]))
    return Busy(reply[1], reply[2], int(reply[3]))
