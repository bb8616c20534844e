"""One script call per update: header checked, bits tested and set, atomic as a whole.

The items of a call are one packed argument, and their answers one packed reply.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError

from bloomlock.delivery import collect
from bloomlock.effects import Core, Pipeline, Request
from bloomlock.scripts import Script

from .base import Segment, Strategy, error_of, header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bloomlock.commands import Replies
    from bloomlock.hashing import Hasher

    from .base import Shard

BITS_PER_CALL = 4096
"""About 1.4 ms of the server's time."""

OFFSET_BYTES = 4

_BITS = Script("bits")


class LuaStrategy(Strategy):
    """One round trip by EVALSHA; exact, and the only one that never writes to a lost filter."""

    name = "lua"
    bits_per_exchange = 2**18

    def ask_shard(
        self, shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.ask_shard; several calls are on their way at once."""
        size = max(1, BITS_PER_CALL // hasher.num_hashes)
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        header, *others = shard.headers
        width = OFFSET_BYTES * hasher.num_hashes

        def arguments(some: Sequence[bytes]) -> list[bytes | int]:
            return [header, int(write), width, hasher.packed(some), *others]

        calls = Calls(_BITS, [shard.key], [partial(arguments, part) for part in parts])
        replies = yield from calls.run(repeatable=not write)
        return [_segment(reply, len(part)) for part, reply in zip(parts, replies, strict=True)]


class Calls:
    """Calls of one script that follow each other, packed while others are on their way.

    Args:
        script: The script.
        keys: Of all of them.
        arguments: Makes those of each call.
    """

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Callable[[], Sequence[bytes | int]]],
    ) -> None:
        self._script = script
        self._keys = keys
        self._arguments = arguments

    def __len__(self) -> int:
        return len(self._arguments)

    def __iter__(self) -> Iterator[list[bytes]]:
        """Pack one call at a time.

        The first of several carries the source, which takes hardly longer and spares the others
        being sent twice to a server that lacks the script.
        """
        script = self._script
        for index, arguments in enumerate(self._arguments):
            make = script.by_source if index == 0 and len(self) > 1 else script.by_digest
            yield [make(self._keys, arguments())]

    def run(self, *, repeatable: bool) -> Core[Replies]:
        """Carry them out; those that found no script, so did nothing, again with the source."""
        request: Request | Pipeline = Pipeline(self._keys[0], self)
        if len(self) == 1:
            request = Request(self._keys[0], next(iter(self)))
        replies = yield from collect(request, repeatable=repeatable)
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                command = self._script.by_source(self._keys, self._arguments[index]())
                request = Request(self._keys[0], [command])
                (replies[index],) = yield from collect(request, repeatable=repeatable)
        return replies


def _segment(reply: object, count: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    header, *flags = reply
    missing = [flag == ord("1") for flag in flags[0]] if flags else None
    return Segment(count, header_from_bytes(header), missing)
