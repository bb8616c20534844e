"""One script call per update: header checked, bits tested and set, atomic as a whole.

The items of a call are one packed argument, and their answers one packed reply. A row is its
offsets, four bytes each, big-endian.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError

from bloomlock.arrays import np
from bloomlock.delivery import collect
from bloomlock.effects import Core, Pipeline, Request
from bloomlock.scripts import Script

from .base import Segment, Strategy, error_of, header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.commands import Replies

    from .base import Rows, Shard

BITS_PER_CALL = 4096
"""About 1.4 ms of the server's time."""

OFFSET_BYTES = 4

_BITS = Script("bits")


class LuaStrategy(Strategy):
    """One round trip by EVALSHA; exact, and the only one that never writes to a lost filter."""

    name = "lua"
    bits_per_exchange = 2**18

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many; several calls are on their way at once."""
        calls = Calls(_BITS, shard, rows, write)
        replies = yield from collect(Pipeline(shard.key, calls), repeatable=not write)
        yield from calls.repeat_unknown(replies)
        return calls.decode(replies)

    def one(self, shard: Shard, offsets: list[int], *, write: bool) -> Core[Segment]:
        """See Strategy.one."""
        arguments = _arguments(shard, write, len(offsets), pack_one(offsets))
        (reply,) = yield from _BITS.call([([shard.key], arguments)], repeatable=not write)
        return _segment(reply, 1)


class Calls:
    """Rows as script calls of up to 4096 bits, packed while others are on their way."""

    def __init__(self, script: Script, shard: Shard, rows: Rows, write: bool) -> None:
        self._script = script
        self._shard = shard
        self._rows = rows
        self._write = write
        self._num_hashes = int(rows.shape[1])
        self._size = max(1, BITS_PER_CALL // self._num_hashes)

    def __len__(self) -> int:
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
        return _arguments(self._shard, self._write, self._num_hashes, pack(rows))

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


def _arguments(shard: Shard, write: bool, hashes: int, places: bytes) -> tuple[bytes | int, ...]:
    header, *others = shard.headers
    return header, int(write), OFFSET_BYTES * hashes, places, *others


def _segment(reply: object, count: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    header, *flags = reply
    missing = np.frombuffer(flags[0], np.uint8) == ord("1") if flags else None
    return Segment(count, header_from_bytes(header), missing)


def pack(rows: Rows) -> bytes:
    """Return the rows of many items, one after the other.

    Cost: 0.01 microseconds a bit.

    >>> pack(np.array([[64, 319]], np.uint64)).hex(" ", 4)
    '00000040 0000013f'
    """
    return rows.astype(">u4").tobytes()


def pack_one(offsets: Sequence[int]) -> bytes:
    """Return the row of one item.

    >>> pack_one([64, 319]).hex(" ", 4)
    '00000040 0000013f'
    """
    return struct.pack(f">{len(offsets)}I", *offsets)
