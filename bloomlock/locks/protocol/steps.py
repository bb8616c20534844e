"""The commands of one lock and their replies (docs/internals/format.md).

Each step may be repeated. All are one script, sent by its digest, and by its source where the
server does not know it.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from bloomlock.commands import (
    Script,
    call,
    encode_command,
    encode_opening,
    named_error,
    send_with_retry,
)
from bloomlock.effects import ConnectionLost, Core, Request, make

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.keys import LockKeys

R = TypeVar("R")

SLICE_MS = 2_000
"""A waiter asks again at least this often, which shows that it is alive. lock.lua says for how long
it counts as alive."""
NO_CHANNEL = b"-"
"""The channel of waiters to whom nothing can be announced."""


class LockRequest(NamedTuple):
    """The arguments of every step: one client, and the lease that it asks for."""

    token: bytes  # no other client has it; fixed before the first byte is sent; without spaces
    lease_ms: int
    is_shared: bool = False
    channel: bytes = b""  # where to announce a grant; empty: not willing to wait

    def listening(self, channel: bytes) -> LockRequest:
        return make(LockRequest, (*self[:3], channel))

    @property
    def terms(self) -> tuple[Any, ...]:
        # A waiter counts the lease of a grant that is announced from when it last asked, which is
        # at most a slice earlier. So the server gives one slice more.
        queued_ms = self.lease_ms + SLICE_MS if self.channel else 0
        word = b"read" if self.is_shared else b"-"
        return word, self.lease_ms, queued_ms, self.channel, self.token


class Granted(NamedTuple):
    fence: int


class Busy(NamedTuple):
    """Another client has the lock."""

    remaining_ms: int  # until the holder's lease ends; negative: it has none
    # Every later grant has a higher one. A grant that is announced with no higher one was made
    # before this answer, and is over: the holder had been stopped for so long.
    fence: int


SCRIPT = Script("lock")
# All but the token stays the same for a lock. To encode it takes 30 times as long as to find it.
_opening = lru_cache(1024)(partial(encode_opening, 1))


class LockOperation(Generic[R]):
    """A script call whose arguments are its name and the `terms` of a request, the token last."""

    def __init__(self, name: bytes, read: Callable[[Any], R]) -> None:
        self._name = name
        self.read = read

    def arguments(self, request: LockRequest) -> tuple[Any, ...]:
        return (self._name, *request.terms)

    def run(
        self, keys: LockKeys, request: LockRequest, *after: bytes, repeatable: bool = True
    ) -> Core[tuple[R, Any]]:
        """Run it for one lock, in one round trip; two where the server does not know the script.

        Returns the answer, and the reply to the command `after` it (at most one), which is sent
        behind it on the same connection.
        """
        *words, token = self.arguments(request)
        opening = _opening("EVALSHA", SCRIPT.digest, len(keys), *keys, *words)
        command = b"%b$%d\r\n%b\r\n" % (opening, len(token), token)
        replies = yield from send_with_retry(
            Request(keys.lock, (command, *after)), repeatable=repeatable
        )
        if isinstance(replies[0], NoScriptError):
            command = SCRIPT.by_source(keys, self.arguments(request))
            replies = yield from send_with_retry(
                Request(keys.lock, (command, *after)), repeatable=repeatable
            )
        if isinstance(replies[0], Exception):
            raise named_error(replies[0], "locks need")
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        return self.read(replies[0]), replies[-1]

    def run_all(self, calls: Sequence[tuple[LockKeys, LockRequest]]) -> Core[list[R | Exception]]:
        """Run it for locks that lie on one server, in one round trip; an answer for each."""
        asked = [(keys, self.arguments(request)) for keys, request in calls]
        replies = yield from SCRIPT.call(asked, repeatable=True)
        return [
            named_error(reply, "locks need") if isinstance(reply, Exception) else self.read(reply)
            for reply in replies
        ]


def _read_acquire(reply: Any) -> Granted | Busy:
    if reply[0]:
        return make(Granted, (int(reply[1]),))
    return make(Busy, (reply[1], int(reply[2])))


ACQUIRE = LockOperation(b"acquire", _read_acquire)
RENEW = LockOperation(b"renew", bool)
RELEASE = LockOperation(b"release", bool)


class LockSteps:
    """The steps for one lock."""

    def __init__(self, keys: LockKeys) -> None:
        self.keys = keys

    def acquire(self, request: LockRequest, *after: bytes) -> Core[tuple[Granted | Busy, Any]]:
        return ACQUIRE.run(self.keys, request, *after)

    def give_back(self, hold: Any) -> Core[bool | None]:
        return self.release(LockRequest(hold.token, hold.lease_ms, hold.is_shared))

    def release(self, request: LockRequest) -> Core[bool | None]:
        """Give up a hold and a place in the queue, and hand the lock on.

        Returns whether the lock was held; None: not known, a first try may have released it.
        """
        try:
            held, _ = yield from RELEASE.run(self.keys, request, repeatable=False)
        except ConnectionLost as lost:
            if not lost.sent:
                raise
            held, _ = yield from RELEASE.run(self.keys, request)
            return held or None
        return held

    def locked(self) -> Core[bool]:
        [held] = yield from call(self.keys.lock, encode_command("EXISTS", self.keys.lock))
        return bool(held)
