"""One script call per update: header checked, bits tested and set, atomic as a whole.

The items of a call are one packed argument, and their answers one packed reply.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bloomlock.scripts import Script

from .base import Segment, Strategy, error_of, header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core
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
        makers = [partial(arguments_of, shard, hasher, part, write=write) for part in parts]
        replies = yield from _BITS.call_each([shard.key], makers, repeatable=not write)
        return [segment_of(reply, len(part)) for part, reply in zip(parts, replies, strict=True)]


def arguments_of(
    shard: Shard, hasher: Hasher, items: Sequence[bytes], *, write: bool
) -> list[bytes | int]:
    """Return the arguments of bits.lua."""
    header, *others = shard.headers
    width = OFFSET_BYTES * hasher.num_hashes
    return [header, int(write), width, hasher.packed(items), *others]


def segment_of(reply: object, count: int) -> Segment:
    """Read the reply of bits.lua about so many items."""
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    header, *flags = reply
    missing = [flag == ord("1") for flag in flags[0]] if flags else None
    return Segment(count, header_from_bytes(header), missing)
