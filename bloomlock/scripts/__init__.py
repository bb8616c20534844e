"""Lua scripts, each in its own file; run by digest, sent whole where the server lacks them.

https://redis.io/docs/latest/commands/evalsha/
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError

from bloomlock.commands import Replies, encode_command
from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Core, Pipeline, Request
from bloomlock.errors import ConfigurationError
from bloomlock.refusals import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Arguments = Callable[[], Sequence[bytes | int]]
    Call = tuple[Sequence[str], Sequence[str | bytes | int]]


class Script:
    """One script, put together from files of this folder; `body` comes first."""

    def __init__(self, *names: str, body: str = "") -> None:
        folder = files(__package__)
        self.source = body + "".join((folder / f"{name}.lua").read_text("utf-8") for name in names)
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def by_digest(self, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> bytes:
        return encode_command("EVALSHA", self.digest, len(keys), *keys, *arguments)

    def by_source(self, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> bytes:
        return encode_command("EVAL", self.source, len(keys), *keys, *arguments)

    def call(
        self, calls: Sequence[Call], *, repeatable: bool, lost: ConnectionLost | None = None
    ) -> Core[Replies]:
        """Run the script once for each call, in one round trip (two where it was not loaded)."""
        request = Request(calls[0][0][0], [self.by_digest(*call) for call in calls])
        replies = yield from collect(request, repeatable=repeatable, lost=lost)
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            # Nothing of these ran.
            request = Request(request.key, [self.by_source(*calls[i]) for i in again])
            late = yield from collect(request, repeatable=repeatable)
            for index, reply in zip(again, late, strict=True):
                replies[index] = reply
        return replies

    def call_each(
        self, keys: Sequence[str], arguments: Sequence[Arguments], *, repeatable: bool
    ) -> Core[Replies]:
        """Run the script several times, packing each call while others are on their way."""
        if len(arguments) == 1:
            return (yield from self.call([(keys, arguments[0]())], repeatable=repeatable))

        def writes() -> Iterator[list[bytes]]:
            # The first call carries the source, which hardly takes longer. It spares the others
            # being sent twice to a server that lacks the script.
            make = self.by_source
            for some in arguments:
                yield [make(keys, some())]
                make = self.by_digest

        request = Pipeline(keys[0], len(arguments), writes)
        replies = yield from collect(request, repeatable=repeatable)
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                calls = [(keys, arguments[index]())]
                (replies[index],) = yield from self.call(calls, repeatable=repeatable)
        return replies


def answer_of(reply: Any, what: str) -> Any:
    """Return the reply to a script, or raise what it is; `what` is as for named_error."""
    if isinstance(reply, ConnectionLost):
        raise reply.cause from None
    if isinstance(reply, Exception):
        raise named_error(reply, what)
    return reply


def named_error(error: Exception, what: str) -> Exception:
    """Return the error of a script; a ConfigurationError where the server runs none.

    `what` is the subject of a sentence and its verb: "claims need".
    """
    if isinstance(error, ConnectionLost) or not is_missing(error):
        return error
    named = ConfigurationError(
        f"{what} a server that runs scripts for this client; it answered {error}"
    )
    named.__cause__ = error
    return named
