"""MULTI, one SETBIT or GETBIT for each bit, the header, EXEC: one round trip, atomic.

https://redis.io/docs/latest/develop/interact/transactions/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import Core, Replies, Request, collect, encode_command

from .base import Segment, Strategy
from .bits import bit_commands, bits_then_header, header_command

if TYPE_CHECKING:
    from .base import Rows, Shard

_MULTI = encode_command("MULTI")
_EXEC = encode_command("EXEC")


class TransactionStrategy(Strategy):
    """One round trip, neither EVAL nor BITFIELD needed; exact."""

    name = "transaction"

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange."""
        request = Request(shard.key, encode_transaction(shard, rows, write))
        replies = yield from collect(request, repeatable=not write)
        return [decode_transaction(replies, len(rows))]


def encode_transaction(shard: Shard, rows: Rows, write: bool) -> list[bytes]:
    """Return the commands of one transaction for all rows."""
    return [_MULTI, *bit_commands(shard.key, rows, write), header_command(shard.key), _EXEC]


def decode_transaction(replies: Replies, count: int) -> Segment:
    """Read the reply of EXEC for `count` rows; an error of any command aborts it as a whole."""
    answers = replies[-1]
    if not isinstance(answers, list):
        error = next(reply for reply in replies if isinstance(reply, Exception))
        return Segment(count, error=error)
    return bits_then_header(answers, count)
