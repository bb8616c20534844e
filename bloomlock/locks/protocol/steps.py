"""The steps of the protocol against a server, each a value that names its ways (delivery.Way).

    acquire, renew   a script, by digest or by source; under WATCH where EVAL is forbidden
    release          the same; compare-and-delete before it (DELIFEQ: Valkey 9.0, DELEX: Redis 8.4)
                     where no client is known to wait

Every step may be repeated. transactions.py has what is done under WATCH.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import redis.exceptions

from bloomlock.commands import Replies, encode_command, encode_opening
from bloomlock.delivery import Way, ask, collect, run_way, run_ways
from bloomlock.effects import ConnectionLost, Core, Request, Subscribe, make
from bloomlock.scripts import Script

from . import model
from .model import AcquireRequest, Busy, Granted, LockState, ReleaseRequest
from .transactions import run_optimistically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys

    from .model import Announce, Hears

Q = TypeVar("Q", bound=tuple[Any, ...])
"""What a step is asked for; the token comes first."""
R = TypeVar("R")
Answer: TypeAlias = tuple[R, Any]
"""What a step returns, and the reply to the command behind it."""

SCRIPTS = "scripts"
CACHED_OPENINGS = 1024
"""Beginnings of commands, which stay the same for a lock."""


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
        scripts: What follows lock_start.lua, in order.
        before: Returns the arguments of the script but for the last one, which is the token. It
            is given what follows the token in a request: mostly the same for one lock.
        read: Reads the script's reply.
        transition: The rule.
        channel: Where the client that asks listens; None: the rule makes no grant.

    Attributes:
        ways: For `run_ways`; each item is a Call.
    """

    def __init__(
        self,
        *scripts: str,
        before: Callable[..., tuple[bytes | int, ...]],
        read: Callable[[Any], R],
        transition: Callable[[LockState, int, Q, Announce, Hears], R],
        channel: Callable[[Q], bytes | None],
    ) -> None:
        self.script = Script("lock_start", *scripts)
        self.ways: tuple[Way[Call[Q], Answer[R]], ...] = (
            Way(
                SCRIPTS,
                lambda calls: self._by_script(calls, self.by_digest),
                request=self._request,
                read=partial(_answer_of, read),
            ),
            Way(SCRIPTS, lambda calls: self._by_script(calls, self._by_source)),
            Way("", self._under_watch),
        )
        self._before = before
        self._read = read
        self._transition = transition
        self._channel = channel
        self._opening = lru_cache(CACHED_OPENINGS)(self._encode_opening)

    def _encode_opening(self, keys: LockKeys, rest: tuple[Any, ...]) -> bytes:
        words = ("EVALSHA", self.script.digest, len(keys), *keys, *self._before(*rest))
        return encode_opening(1, *words)

    def by_digest(self, call: Call[Q]) -> bytes:
        """Return the command that runs the script by its digest."""
        request = call.request
        token = request[0]
        opening = self._opening(call.keys, request[1:])
        return b"%b$%d\r\n%b\r\n" % (opening, len(token), token)

    def _request(self, call: Call[Q]) -> tuple[Request, bool]:
        command = self.by_digest(call)
        commands = (command,) if call.after is None else (command, call.after)
        request = make(Request, (call.keys.lock, commands, False, None, True, False))
        return request, call.repeatable

    def _by_source(self, call: Call[Q]) -> bytes:
        token, *rest = call.request
        return self.script.by_source(call.keys, (*self._before(*rest), token))

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
        opening = encode_opening(1, name, keys.lock, *condition)
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
        read=partial(_answer_of, bool),
    )


def _exchange(
    calls: Sequence[Call[Any]], commands: list[bytes], read: Callable[[Any], R]
) -> Core[list[Answer[R] | Exception]]:
    """Send the command of each call, or each call's command and the one behind it."""
    request = Request(calls[0].keys.lock, commands)
    replies = yield from collect(request, repeatable=calls[0].repeatable)
    size = len(replies) // len(calls)
    return [_answer_of(read, replies[i : i + size]) for i in range(0, len(replies), size)]


def _answer_of(read: Callable[[Any], R], replies: Replies) -> Answer[R] | Exception:
    """Read the reply to a call, and to the command behind it if there was one."""
    for reply in replies:
        if isinstance(reply, Exception):
            return reply
    return read(replies[0]), replies[1] if len(replies) > 1 else None


def _read_acquire(reply: Any) -> Granted | Busy:
    if reply[0]:
        return make(Granted, (int(reply[1]), bool(reply[2])))
    return make(Busy, (reply[1], reply[2], int(reply[3])))


def _terms_of(
    lease_ms: int, group: bytes, may_join: bool, channel: bytes, provisional_lease_ms: int
) -> tuple[bytes | int, ...]:
    queued_ms = 0
    if channel:
        asking = AcquireRequest(b"", lease_ms, provisional_lease_ms=provisional_lease_ms)
        queued_ms = asking.queued_ms
    return group, lease_ms, int(may_join), queued_ms, channel


ACQUIRE: Change[AcquireRequest, Granted | Busy] = Change(
    "lock_acquire_plain",
    "lock_common",
    "lock_acquire",
    before=_terms_of,
    read=_read_acquire,
    transition=model.acquire,
    channel=lambda request: request.channel,
)
RELEASE: Change[ReleaseRequest, bool] = Change(
    "lock_release_plain",
    "lock_common",
    "lock_release",
    before=lambda group, record: (group, record),
    read=bool,
    transition=model.release,
    channel=lambda _: b"",
)
# No native command renews: SET IFEQ sets a shorter lease too, so a late copy of an earlier renewal
# would shorten what was extended since.
RENEW: Change[tuple[bytes, bytes, int], bool] = Change(
    "lock_common",
    "lock_renew",
    before=lambda group, lease_ms: (group, lease_ms),
    read=bool,
    transition=lambda state, now_us, request, *_: model.renew(state, now_us, *request),
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

    Attributes:
        keys: Its keys.
        heed: Lets a core listen for announcements if there is a connection to listen on.
    """

    def __init__(self, keys: LockKeys, missing: set[str]) -> None:
        self.keys = keys
        self.heed = Subscribe(keys.lock, connect=False)
        self._missing = missing

    def acquire(self, request: AcquireRequest) -> Core[Granted | Busy]:
        """Take the lock or stand in its queue; one round trip."""
        call = make(Call, (self.keys, request, None, True))
        answer, _ = yield from run_way(ACQUIRE.ways, call, self._missing)
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
        once = make(Call, (self.keys, request, None, False))
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
    calls = [Call(keys, (token, group, lease_ms)) for keys, token, group, lease_ms in renewals]
    answers = yield from run_ways(RENEW.ways, calls, missing)
    return [answer if isinstance(answer, Exception) else answer[0] for answer in answers]
