"""The steps of the protocol against a server, each a value that names its ways (effects.Way).

    acquire, renew   a script, by digest or by source; under WATCH where EVAL is forbidden
    release          the same; compare-and-delete before it (DELIFEQ: Valkey 9.0, DELEX: Redis 8.4)
                     where no client is known to wait

Every step may be repeated. Under WATCH the state is read, changed here by the rules of model.py,
and written by EXEC, which does nothing if the lock changed or expired since it was read; then all
is done again. That there is nothing to write is also only believed after an EXEC: the keys are read
one by one, and other clients may have changed the lock in between. Grants are announced after EXEC,
never before it is known to have happened.
"""

from __future__ import annotations

import contextlib
from copy import deepcopy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import redis.exceptions

from bloomlock.effects import (
    EXEC,
    MULTI,
    ConnectionLost,
    Core,
    Pause,
    Replies,
    Request,
    Way,
    ask,
    check,
    collect,
    deliver,
    encode_arguments,
    encode_command,
    is_slot_refusal,
    run_way,
    run_ways,
)
from bloomlock.scripts import Script

from . import model
from .model import (
    LIVENESS_MS,
    NEVER_MS,
    NO_CHANNEL,
    AcquireRequest,
    Busy,
    Granted,
    LockState,
    ReleaseRequest,
    read_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys

    from .model import Announce, Announcement, Hears

    Transition = Callable[[LockState, int, Announce, Hears], "T"]

T = TypeVar("T")
Q = TypeVar("Q")
R = TypeVar("R")
Answer: TypeAlias = tuple[R, Any]
"""What a step returns, and the reply to the command behind it."""

SCRIPTS = "scripts"
CACHED_OPENINGS = 1024
"""Beginnings of commands, which stay the same for a lock."""
TRIES = 200
SHORTEST_PAUSE = 0.0005
LONGEST_PAUSE = 0.05


class Renewal(NamedTuple):
    """One hold to be renewed."""

    keys: LockKeys
    token: bytes
    group: bytes
    lease_ms: int


class Call(NamedTuple, Generic[Q]):
    """A step for one lock.

    Attributes:
        keys: Of the lock.
        request: What is asked.
        after: A command to send behind the step, on the same connection.
        repeatable: Whether it is sent again when its reply is lost; the same for all of a batch.
    """

    keys: LockKeys
    request: Q
    after: bytes | None = None
    repeatable: bool = True


class Change(Generic[Q, R]):
    """A rule of model.py as a step: the script that equals it, or itself under WATCH.

    Args:
        name: Of the script.
        constant: Returns the first arguments of the script, which are the same from one request
            of a lock to the next.
        varying: Returns the others.
        read: Reads the script's reply.
        transition: The rule.
        channel: Where the client that asks listens; None: the rule makes no grant.

    Attributes:
        ways: For `run_ways`; each item is a Call.
    """

    def __init__(
        self,
        name: str,
        *,
        constant: Callable[[Q], tuple[bytes | int, ...]],
        varying: Callable[[Q], tuple[bytes, ...]],
        read: Callable[[Any], R],
        transition: Callable[[LockState, int, Q, Announce, Hears], R],
        channel: Callable[[Q], bytes | None],
    ) -> None:
        self.script = Script("lock_common", name)
        self.ways: tuple[Way[Call[Q], Answer[R]], ...] = (
            Way(
                SCRIPTS,
                lambda calls: self._by_script(calls, self.by_digest),
                request=self._request,
                read=self._read_one,
            ),
            Way(SCRIPTS, lambda calls: self._by_script(calls, self._by_source)),
            Way("", self._under_watch),
        )
        self._constant = constant
        self._varying = varying
        self._read = read
        self._transition = transition
        self._channel = channel
        self._opening = lru_cache(CACHED_OPENINGS)(self._encode_opening)

    def _encode_opening(
        self, keys: LockKeys, constant: tuple[bytes | int, ...], num_varying: int
    ) -> bytes:
        head = self.script.head(keys, len(constant) + num_varying)
        return head + encode_arguments(*constant)

    def by_digest(self, call: Call[Q]) -> bytes:
        """Return the command that runs the script by its digest."""
        varying = self._varying(call.request)
        opening = self._opening(call.keys, self._constant(call.request), len(varying))
        return opening + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in varying])

    def _request(self, call: Call[Q]) -> tuple[Request, bool]:
        commands = [self.by_digest(call)]
        if call.after is not None:
            commands.append(call.after)
        return Request(call.keys.lock, commands), call.repeatable

    def _read_one(self, replies: Replies) -> Answer[R] | Exception:
        return _answer_of(replies, self._read)

    def _by_source(self, call: Call[Q]) -> bytes:
        arguments = self._constant(call.request) + self._varying(call.request)
        return self.script.by_source(call.keys, arguments)

    def _by_script(
        self, calls: Sequence[Call[Q]], encode: Callable[[Call[Q]], bytes]
    ) -> Core[list[Answer[R] | Exception]]:
        commands = []
        for call in calls:
            commands.append(encode(call))
            if call.after is not None:
                commands.append(call.after)
        return _exchange(calls, commands, self._read)

    def _under_watch(self, calls: Sequence[Call[Q]]) -> Core[list[Answer[R] | Exception]]:
        answers: list[Answer[R] | Exception] = []
        for call in calls:
            request, channel = call.request, self._channel(call.request)

            def transition(
                state: LockState,
                now_us: int,
                announce: Announce,
                hears: Hears,
                request: Q = request,
            ) -> R:
                return self._transition(state, now_us, request, announce, hears)

            try:
                answer = yield from run_optimistically(
                    call.keys,
                    transition,
                    channel=channel,
                    after=call.after,
                    repeatable=call.repeatable,
                )
            except redis.exceptions.RedisError as error:
                answers.append(error)
            except ConnectionLost as lost:
                unsent = ConnectionLost(lost.cause, sent=False, replies=[])
                return [*answers, lost, *[unsent] * (len(calls) - len(answers) - 1)]
            else:
                answers.append(answer)
        return answers


def _compare_and_delete(name: str, *condition: str) -> Way[Call[ReleaseRequest], Answer[bool]]:
    """Return a native way to release; what is behind it is whether there is a queue."""

    @lru_cache(CACHED_OPENINGS)
    def encode(keys: LockKeys) -> tuple[bytes, bytes]:
        words = (name, keys.lock, *condition)
        opening = b"*%d\r\n%b" % (len(words) + 1, encode_arguments(*words))
        return opening, encode_command("EXISTS", keys.queue)

    def commands_of(call: Call[ReleaseRequest]) -> tuple[bytes, bytes]:
        opening, exists = encode(call.keys)
        token = call.request.token
        return b"%b$%d\r\n%b\r\n" % (opening, len(token), token), exists

    def send(calls: Sequence[Call[ReleaseRequest]]) -> Core[list[Answer[bool] | Exception]]:
        return _exchange(calls, [each for call in calls for each in commands_of(call)], bool)

    return Way(
        name,
        send,
        request=lambda call: (Request(call.keys.lock, commands_of(call)), call.repeatable),
        read=lambda replies: _answer_of(replies, bool),
    )


def _exchange(
    calls: Sequence[Call[Any]], commands: list[bytes], read: Callable[[Any], R]
) -> Core[list[Answer[R] | Exception]]:
    """Send the command of each call, or each call's command and the one behind it."""
    request = Request(calls[0].keys.lock, commands)
    replies = yield from collect(request, repeatable=calls[0].repeatable)
    size = len(replies) // len(calls)
    return [_answer_of(replies[i : i + size], read) for i in range(0, len(replies), size)]


def _answer_of(replies: Replies, read: Callable[[Any], R]) -> Answer[R] | Exception:
    """Read the reply to a call, and to the command behind it if there was one."""
    for reply in replies:
        if isinstance(reply, Exception):
            return reply
    return read(replies[0]), replies[1] if len(replies) > 1 else None


def _read_acquire(reply: Any) -> Granted | Busy:
    if reply[0]:
        return Granted(int(reply[1]), bool(reply[2]))
    return Busy(reply[1], reply[2], int(reply[3]))


ACQUIRE: Change[AcquireRequest, Granted | Busy] = Change(
    "lock_acquire",
    constant=lambda request: (request.group, request.lease_ms, int(request.may_join)),
    varying=lambda request: (request.token, request.record if request.channel else b""),
    read=_read_acquire,
    transition=model.acquire,
    channel=lambda request: request.channel,
)
RELEASE: Change[ReleaseRequest, bool] = Change(
    "lock_release",
    constant=lambda request: (request.group,),
    varying=lambda request: (request.token, request.record),
    read=bool,
    transition=model.release,
    channel=lambda _: b"",
)
# No native command renews: SET IFEQ sets a shorter lease too, so a late copy of an earlier renewal
# would shorten what was extended since.
RENEW: Change[Renewal, bool] = Change(
    "lock_renew",
    constant=lambda renewal: (renewal.group, renewal.lease_ms),
    varying=lambda renewal: (renewal.token,),
    read=bool,
    transition=lambda state, now_us, renewal, *_: model.renew(state, now_us, *renewal[1:]),
    channel=lambda _: None,
)
RELEASE_EXCLUSIVE = (
    _compare_and_delete("DELIFEQ"),
    _compare_and_delete("DELEX", "IFEQ"),
    *RELEASE.ways,
)
"""For an exclusive hold of a lock for which no client is known to wait."""


class LockSteps:
    """The steps for the lock at some keys.

    Args:
        keys: Its keys.
        missing: What the server is known to lack; shared by all locks over one client.
    """

    def __init__(self, keys: LockKeys, missing: set[str]) -> None:
        self.keys = keys
        self._missing = missing

    def acquire(self, request: AcquireRequest) -> Core[Granted | Busy]:
        """Take the lock or stand in its queue; one round trip."""
        answer, _ = yield from run_way(ACQUIRE.ways, Call(self.keys, request), self._missing)
        return answer

    def confirm(
        self, request: AcquireRequest, replicas: int, wait_ms: int
    ) -> Core[tuple[Granted, int]]:
        """Write a hold anew and return how many replicas have it (WAIT); one round trip.

        WAIT speaks of what its own connection wrote, and the grant may have been another's.
        """
        call = Call(self.keys, request, encode_command("WAIT", replicas, wait_ms))
        answer, count = yield from run_way(ACQUIRE.ways, call, self._missing)
        if isinstance(answer, Busy):
            return Granted(0, waiters=True), 0
        return answer, int(count)

    def release(self, request: ReleaseRequest, *, waiters: bool) -> Core[bool | None]:
        """Give up a hold and a place in the queue, and hand the lock on.

        Args:
            request: What is given up.
            waiters: Whether a client is known to wait.

        Returns:
            Whether the lock was held; None: not known, a first try may have released it.
            One round trip; two if a client waits that was not known.
        """
        once = Call(self.keys, request, None, False)
        shared = waiters or request.group or request.record
        repeated = False
        for ways in (RELEASE.ways,) if shared else (RELEASE_EXCLUSIVE, RELEASE.ways):
            try:
                held, queue = yield from run_way(ways, once, self._missing)
            except ConnectionLost as lost:
                if repeated := lost.sent:
                    break
            else:
                if queue:
                    # It is free already: a waiter that this does not reach looks by itself.
                    with contextlib.suppress(ConnectionLost):
                        yield from run_way(RELEASE.ways, Call(self.keys, request), self._missing)
                return held
        held, _ = yield from run_way(RELEASE.ways, Call(self.keys, request), self._missing)
        return held or (None if repeated else False)

    def is_held(self, token: bytes, group: bytes) -> Core[bool]:
        """Return whether a hold is in force; one round trip."""
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


def renew_all(renewals: Sequence[Renewal], missing: set[str]) -> Core[list[bool | Exception]]:
    """Renew holds that lie on one server, in one round trip.

    Returns:
        For each whether it was held, or why that is not known.
    """
    calls = [Call(renewal.keys, renewal) for renewal in renewals]
    answers = yield from run_ways(RENEW.ways, calls, missing)
    return [answer if isinstance(answer, Exception) else answer[0] for answer in answers]


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
