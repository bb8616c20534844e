"""The steps of the protocol against a server, each of which may be repeated.

A step is a script, sent by its digest, and by its source where the server does not know it. A
release of a lock that no client is known to wait for is tried as a native compare-and-delete first:
DELIFEQ of Valkey 9.0, DELEX of Redis 8.4.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from bloomlock.commands import Replies, encode_command, encode_opening
from bloomlock.delivery import ask, deliver
from bloomlock.effects import ConnectionLost, Core, Request, Subscribe, make
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script, named_error

from .values import AcquireRequest, Busy, Granted, ReleaseRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys
    from bloomlock.locks.hold import Hold

R = TypeVar("R")

CACHED_OPENINGS = 1024
"""Beginnings of commands, which stay the same for a lock."""
COMPARE_AND_DELETE = (("DELIFEQ",), ("DELEX", "IFEQ"))


class Renewal(NamedTuple):
    keys: LockKeys
    token: bytes
    group: bytes
    lease_ms: int


class LockScript(Generic[R]):
    """A script whose last argument is a token; what stands before it stays the same for one lock.

    Args:
        names: Its files, which follow lock_start.lua.
        terms: Returns its arguments but for the token, given what follows that in a request.
        read: Reads its reply.
    """

    def __init__(
        self,
        *names: str,
        terms: Callable[..., tuple[bytes | int, ...]],
        read: Callable[[Any], R],
    ) -> None:
        self._script = Script("lock_start", *names)
        self._terms = terms
        self._read = read
        self._opening = lru_cache(CACHED_OPENINGS)(self._encode_opening)

    def _encode_opening(self, keys: LockKeys, rest: tuple[Any, ...]) -> bytes:
        words = ("EVALSHA", self._script.digest, len(keys), *keys, *self._terms(*rest))
        return encode_opening(1, *words)

    def command(self, keys: LockKeys, request: tuple[Any, ...]) -> bytes:
        """Return the command that runs it by its digest, for a request that begins with a token."""
        token = request[0]
        return b"%b$%d\r\n%b\r\n" % (self._opening(keys, request[1:]), len(token), token)

    def run(
        self, keys: LockKeys, request: tuple[Any, ...], *after: bytes, repeatable: bool = True
    ) -> Core[tuple[R, Any]]:
        """Run it for one lock, in one round trip; two where the server does not know it.

        Args:
            keys: Of the lock.
            request: What is asked; its first element is the token.
            after: At most one command to send behind it, on the same connection.
            repeatable: Whether it is sent again when its reply is lost.

        Returns:
            The answer, and the reply to the command behind it.

        Raises:
            ConfigurationError: If the server runs no scripts for this client.
            ConnectionLost, redis.exceptions.RedisError: What came in place of a reply.
        """
        sent = Request(keys.lock, (self.command(keys, request), *after))
        try:
            replies = yield sent
        except ConnectionLost as lost:
            replies = yield from deliver(sent, repeatable=repeatable, lost=lost)
        if isinstance(replies[0], NoScriptError):
            sent = Request(keys.lock, (self._by_source(keys, request), *after))
            replies = yield from deliver(sent, repeatable=repeatable)
        if isinstance(replies[0], Exception):
            raise named_error(replies[0], "locks need")
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        return self._read(replies[0]), replies[-1]

    def _by_source(self, keys: LockKeys, request: tuple[Any, ...]) -> bytes:
        return self._script.by_source(keys, (*self._terms(*request[1:]), request[0]))

    def run_all(
        self, calls: Sequence[tuple[LockKeys, tuple[Any, ...]]]
    ) -> Core[list[R | Exception]]:
        """Run it for locks that lie on one server, in one round trip; an answer for each."""
        asked = [(keys, (*self._terms(*rest), token)) for keys, (token, *rest) in calls]
        replies = yield from self._script.call(asked, repeatable=True)
        return [
            named_error(reply, "locks need") if isinstance(reply, Exception) else self._read(reply)
            for reply in replies
        ]


def _read_acquire(reply: Any) -> Granted | Busy:
    if reply[0]:
        return make(Granted, (int(reply[1]), bool(reply[2])))
    return make(Busy, (reply[1], reply[2], int(reply[3])))


def _acquire_terms(
    lease_ms: int, group: bytes, may_join: bool, channel: bytes, provisional_lease_ms: int
) -> tuple[bytes | int, ...]:
    asking = AcquireRequest(b"", lease_ms, provisional_lease_ms=provisional_lease_ms)
    return group, lease_ms, int(may_join), asking.queued_ms if channel else 0, channel


ACQUIRE: LockScript[Granted | Busy] = LockScript(
    "lock_acquire_plain", "lock_common", "lock_acquire", terms=_acquire_terms, read=_read_acquire
)
RELEASE = LockScript(
    "lock_release_plain",
    "lock_common",
    "lock_release",
    terms=lambda group, record: (group, record),
    read=bool,
)
# No native command renews: SET IFEQ sets a shorter lease too, so a late copy of an earlier renewal
# would shorten what was extended since.
RENEW = LockScript(
    "lock_common", "lock_renew", terms=lambda group, lease_ms: (group, lease_ms), read=bool
)


@lru_cache(CACHED_OPENINGS)
def _deletion(keys: LockKeys, *words: str) -> tuple[bytes, bytes]:
    """Return a compare-and-delete without its token, and what tells whether there is a queue."""
    name, *condition = words
    opening = encode_opening(1, name, keys.lock, *condition)
    return opening, encode_command("EXISTS", keys.queue)


def compare_and_delete(
    locks: Sequence[LockKeys], token: bytes, missing: set[str], *, repeatable: bool
) -> Core[Replies | None]:
    """Release locks of one server by a native command, in one round trip.

    Returns:
        For each lock whether it was held and whether there is a queue, one behind the other; None
        where the server has no such command, which is noted in `missing`.
    """
    for words in COMPARE_AND_DELETE:
        if words[0] in missing:
            continue
        commands: list[bytes] = []
        for keys in locks:
            opening, exists = _deletion(keys, *words)
            commands += (b"%b$%d\r\n%b\r\n" % (opening, len(token), token), exists)
        replies = yield from deliver(Request(locks[0].lock, commands), repeatable=repeatable)
        if not (isinstance(replies[0], Exception) and is_missing(replies[0])):
            return replies
        missing.add(words[0])
    return None


class LockSteps:
    """The steps for the lock at some keys.

    Args:
        keys: Its keys.
        missing: Which native commands the server is known to lack; shared by all locks of a client.

    Attributes:
        keys: Its keys.
        heed: Lets a core listen for announcements if there is a connection to listen on.
    """

    def __init__(self, keys: LockKeys, missing: set[str]) -> None:
        self.keys = keys
        self.heed = Subscribe(keys.lock, connect=False)
        self._missing = missing

    def acquire(self, request: AcquireRequest) -> Core[tuple[Granted | Busy, Any]]:
        """Take the lock or stand in its queue; one round trip. The answer stands first."""
        return ACQUIRE.run(self.keys, request)

    def confirm(
        self, request: AcquireRequest, replicas: int, wait_ms: int
    ) -> Core[tuple[Granted | Busy, Any]]:
        """Write a hold anew; also return how many replicas have it (WAIT); one round trip.

        WAIT speaks of what its own connection wrote, and the grant may have been another's.
        """
        return ACQUIRE.run(self.keys, request, encode_command("WAIT", replicas, wait_ms))

    def give_back(self, hold: Hold) -> Core[bool | None]:
        request = make(ReleaseRequest, (hold.token, hold.group, b""))
        return self.release(request, waiters=hold.waiters)

    def release(self, request: ReleaseRequest, *, waiters: bool) -> Core[bool | None]:
        """Give up a hold and a place in the queue, and hand the lock on.

        Args:
            request: What is given up.
            waiters: Whether a client is known to wait.

        Returns:
            Whether the lock was held; None: not known, a first try may have released it.
            One round trip; two if a client waits that was not known.
        """
        try:
            if not (waiters or request.group or request.record):
                locks = (self.keys,)
                replies = yield from compare_and_delete(
                    locks, request.token, self._missing, repeatable=False
                )
                if replies is not None:
                    held, queue = replies
                    if isinstance(held, Exception):
                        raise held
                    if queue:
                        # It is free already: a waiter that this does not reach looks by itself.
                        with contextlib.suppress(ConnectionLost):
                            yield from RELEASE.run(self.keys, request)
                    return bool(held)
            held, _ = yield from RELEASE.run(self.keys, request, repeatable=False)
        except ConnectionLost as lost:
            if not lost.sent:
                raise
        else:
            return held
        held, _ = yield from RELEASE.run(self.keys, request)
        return held or None

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
        [value] = yield from ask(self.keys.lock, encode_command("GET", self.keys.lock))
        held: bytes | None = value
        return held


def renew_all(renewals: Sequence[Renewal]) -> Core[list[bool | Exception]]:
    """Renew holds that lie on one server, in one round trip.

    Returns:
        For each whether it was held, or why that is not known.
    """
    return (yield from RENEW.run_all([(each.keys, each[1:]) for each in renewals]))
