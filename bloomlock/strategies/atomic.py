"""One BITFIELD per update: header read and all bits tested and set in one atomic command.

https://redis.io/docs/latest/commands/bitfield/ and /bitfield_ro/ (Redis 6.0).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from bloomlock.commands import Replies, encode_command

from .base import CommandStrategy, Segment, missing_bits, rows_per_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Rows, Shard

# Encoding is most of the work, so an operation is text around its offset and nothing else.
# Index: the number of digits of the offset, at most 10 below 2^32.
_SET = [f"$3\r\nSET\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(11)]
_SET_END = "\r\n$1\r\n1\r\n"
_GET = [f"$3\r\nGET\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(11)]
_GET_END = "\r\n"
_LEAST = [0, *(10**power for power in range(10))]


class AtomicStrategy(CommandStrategy):
    """One round trip, no script; exact."""

    name = "atomic"

    def encode(self, shard: Shard, rows: Rows, write: bool) -> list[bytes]:
        """Return one BITFIELD for up to 1000 bits' worth of items."""
        if len(rows) == 1:
            return [bitfield(shard, rows[0], write)]
        size = rows_per_command(len(rows[0]))
        return [
            bitfield(shard, [offset for row in rows[start : start + size] for offset in row], write)
            for start in range(0, len(rows), size)
        ]

    def decode(self, replies: Replies, rows: Rows) -> list[Segment]:
        """Read each command's header and old bits."""
        num_hashes = len(rows[0])
        if len(rows) == 1:
            return [_segment(replies[0], 1, num_hashes)]
        size = rows_per_command(num_hashes)
        return [
            _segment(reply, min(size, len(rows) - index * size), num_hashes)
            for index, reply in enumerate(replies)
        ]


def bitfield(shard: Shard, offsets: Sequence[int], write: bool) -> bytes:
    """Return the command that reads the header and tests (and sets) the bits at `offsets`."""
    heads, end = (_SET, _SET_END) if write else (_GET, _GET_END)
    # Nearly all offsets have as many digits as the largest, or one less.
    digits = shard.digits
    long, short = heads[digits], heads[digits - 1]
    least_long, least_short = _LEAST[digits], _LEAST[digits - 1]
    operations = end.join(
        [
            f"{long}{offset}"
            if offset >= least_long
            else f"{short}{offset}"
            if offset >= least_short
            else f"{heads[len(str(offset))]}{offset}"
            for offset in offsets
        ]
    )
    return (_opening(shard.key, len(offsets), write) + operations + end).encode()


@lru_cache(maxsize=4096)
def _opening(key: str, operations: int, write: bool) -> str:
    arguments = ("BITFIELD" if write else "BITFIELD_RO", key, "GET", "i64", "0")
    count = len(arguments) + operations * (4 if write else 3)
    whole = encode_command(*arguments).decode()
    return f"*{count}" + whole[whole.index("\r") :]


def _segment(reply: object, count: int, num_hashes: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=reply if isinstance(reply, Exception) else TypeError(reply))
    header = reply[0]
    if count == 1:
        # Only a header of 0 could be taken for a bit, and that one is looked at first.
        return Segment(1, header, [0 in reply])
    return Segment(count, header, missing_bits(reply[1:], num_hashes))
