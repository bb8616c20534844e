"""One script call per update: header checked, bits tested and set, atomic as a whole.

The items of a call are one packed argument, and their answers one packed reply.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from redis.exceptions import NoScriptError

from bloomlock.descriptor import HEADER_BYTES, header_from_bytes
from bloomlock.effects import Core, Pipeline, Replies, Request, collect
from bloomlock.scripts import Script

from .base import Segment, Strategy
from .packing import pack, pack_one, row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .base import Rows, Shard

BITS_PER_CALL = 4096
"""About 1.4 ms of the server's time, half of that in the blocked layout."""


_BITS = Script("bits")
_BLOCKS = Script("blocks")


class LuaStrategy(Strategy):
    """One round trip by EVALSHA; exact, and the only one that never writes to a lost filter."""

    name = "lua"
    bits_per_exchange = 2**18
    # On the wire it is two or four; but the script's 0.2 to 0.35 microseconds for a bit are what
    # weighs against a bitmap, and a bitmap of so many bytes takes as long.
    bytes_per_bit = 32

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange; several calls are on their way at once."""
        calls = Calls(_script_for(shard), shard, rows, write)
        replies = yield from collect(Pipeline(shard.key, calls), repeatable=not write)
        yield from calls.repeat_unknown(replies)
        return calls.decode(replies)

    def exchange_one(self, shard: Shard, offsets: Sequence[int], *, write: bool) -> Core[Segment]:
        """See Strategy.exchange_one."""
        blocked = shard.block_bits != 0
        size = row_bytes(len(offsets), blocked=blocked)
        arguments = (*_opening(shard, write, size), pack_one(offsets, blocked=blocked))
        call = ([shard.key], arguments)
        (reply,) = yield from _script_for(shard).call([call], repeatable=not write)
        return _segment(reply, 1)


class Calls:
    """Rows as script calls of up to 4096 bits, packed while others are on their way.

    Args:
        script: What to call.
        shard: Where the bits are.
        rows: Offsets of each item.
        write: Whether to set the bits as well.
    """

    def __init__(self, script: Script, shard: Shard, rows: Rows, write: bool) -> None:
        """Pack nothing yet."""
        self._script = script
        self._shard = shard
        self._rows = rows
        self._write = write
        self._num_hashes = int(rows.shape[1])
        self._size = max(1, BITS_PER_CALL // self._num_hashes)

    def __len__(self) -> int:
        """Return the number of calls."""
        return math.ceil(len(self._rows) / self._size)

    def __iter__(self) -> Iterator[list[bytes]]:
        """Pack one call at a time.

        The first of several carries the source, which takes hardly longer and spares the others
        being sent twice to a server that lacks the script.
        """
        script = self._script
        for index in range(len(self)):
            make = script.by_source if index == 0 and len(self) > 1 else script.by_digest
            yield [make([self._shard.key], self._arguments(index))]

    def _arguments(self, index: int) -> tuple[bytes | int, ...]:
        rows = self._rows[index * self._size : (index + 1) * self._size]
        blocked = self._shard.block_bits != 0
        size = row_bytes(self._num_hashes, blocked=blocked)
        return (*_opening(self._shard, self._write, size), pack(rows, blocked=blocked))

    def repeat_unknown(self, replies: Replies) -> Core[None]:
        """Repeat, with the source, the calls that found no script: nothing of them was done."""
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        for index in again:
            command = self._script.by_source([self._shard.key], self._arguments(index))
            request = Request(self._shard.key, [command])
            (replies[index],) = yield from collect(request, repeatable=not self._write)

    def decode(self, replies: Replies) -> list[Segment]:
        """Read each call's header and answers."""
        return [
            _segment(reply, min(self._size, len(self._rows) - index * self._size))
            for index, reply in enumerate(replies)
        ]


def _script_for(shard: Shard) -> Script:
    return _BLOCKS if shard.block_bits else _BITS


def _opening(shard: Shard, write: bool, size: int) -> tuple[bytes, int, int]:
    return shard.header.to_bytes(HEADER_BYTES, "big"), int(write), size


def _segment(reply: object, count: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=reply if isinstance(reply, Exception) else TypeError(reply))
    header, *flags = reply
    missing = np.frombuffer(flags[0], np.uint8) == ord("1") if flags else None
    return Segment(count, header_from_bytes(header), missing)
