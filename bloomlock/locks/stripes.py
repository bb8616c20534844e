"""The minimal locks under the filter's lock strategy: one key for each stripe of items.

    acquire   SET key token NX PX lease, then GET key: a try whose reply was lost is recognised
              by its token and not mistaken for somebody else's lock
    held      GET key: the token, if the lease has not run out
    release   delete if the token is ours: DELIFEQ (Valkey 9.0), DELEX (Redis 8.4), else a script,
              else WATCH where EVAL is forbidden; found by trying, once for each object

A holder that dies leaves its keys to expire with the lease.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import (
    ConnectionLost,
    Core,
    Request,
    ask,
    check,
    collect,
    deliver,
    encode_command,
)
from bloomlock.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

logger = logging.getLogger("bloomlock.locks")

LEASE_MS = 10_000


class StripeLocks:
    """Take and give back locks by key; all keys of one call lie in one shard's slot."""

    def __init__(self) -> None:
        """Start with the best way to release; worse ones are taken where it is refused."""
        self._script = Script("release")
        self._ways: Iterator[str] = iter(("DELEX", "script", "watch"))
        self._way = "DELIFEQ"

    def acquire(self, keys: Sequence[str], token: bytes) -> Core[list[bool]]:
        """Try once to take each lock, in one round trip.

        Returns:
            For each key whether this token holds it now.

        Raises:
            redis.exceptions.RedisError: If the server cannot be asked.
        """
        commands = []
        for key in keys:
            commands.append(encode_command("SET", key, token, "NX", "PX", LEASE_MS))
            commands.append(self.held_command(key))
        replies = yield from ask(keys[0], *commands)
        return [holder == token for holder in replies[1::2]]

    def held_command(self, key: str) -> bytes:
        """Return the command whose reply is the token while the lock is held with it."""
        return encode_command("GET", key)

    def release(self, keys: Sequence[str], token: bytes) -> Core[None]:
        """Delete the locks that still hold `token`.

        Never raises what the server or the network did: the lease ends by itself.
        """
        try:
            while not (yield from self._release(keys, token)):
                self._way = next(self._ways)
        except (ConnectionLost, RedisError) as error:
            logger.debug("releasing %d locks failed, they expire: %s", len(keys), error)

    def _release(self, keys: Sequence[str], token: bytes) -> Core[bool]:
        if self._way == "watch":
            for key in keys:
                yield from _watch_and_delete(key, token)
            return True
        if self._way == "script":
            calls = [([key], [token]) for key in keys]
            replies = yield from self._script.call(calls, repeatable=True)
        else:
            condition = [token] if self._way == "DELIFEQ" else ["IFEQ", token]
            commands = [encode_command(self._way, key, *condition) for key in keys]
            replies = yield from collect(Request(keys[0], commands), repeatable=True)
        for reply in replies:
            if isinstance(reply, ConnectionLost):
                raise reply
        return not any(isinstance(reply, Exception) for reply in replies)


def _watch_and_delete(key: str, token: bytes) -> Core[None]:
    watching = Request(key, (encode_command("WATCH", key), encode_command("GET", key)), hold=True)
    _, holder = check((yield from deliver(watching, repeatable=True)))
    if holder == token:
        finish = ("MULTI",), ("DEL", key), ("EXEC",)
        yield Request(key, [encode_command(*command) for command in finish])
    else:
        yield Request(key, [encode_command("UNWATCH")])
