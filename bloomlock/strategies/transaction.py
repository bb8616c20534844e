"""MULTI, one SETBIT or GETBIT for each bit, the header, EXEC: one round trip, atomic.

https://redis.io/docs/latest/develop/interact/transactions/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import Replies, encode_command
from bloomlock.descriptor import header_from_bytes

from .base import CommandStrategy, Segment, missing_bits
from .bits import bit_commands, header_command

if TYPE_CHECKING:
    from .base import Rows, Shard

_MULTI = encode_command("MULTI")
_EXEC = encode_command("EXEC")


class TransactionStrategy(CommandStrategy):
    """One round trip, neither EVAL nor BITFIELD needed; exact."""

    name = "transaction"

    def encode(self, shard: Shard, rows: Rows, write: bool) -> list[bytes]:
        """Return the commands of one transaction for all rows."""
        return [_MULTI, *bit_commands(shard.key, rows, write), header_command(shard.key), _EXEC]

    def decode(self, replies: Replies, rows: Rows) -> list[Segment]:
        """Read the reply of EXEC; an error of any command aborts it as a whole."""
        answers = replies[-1]
        if not isinstance(answers, list):
            error = next(reply for reply in replies if isinstance(reply, Exception))
            return [Segment(len(rows), error=error)]
        wrong = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if wrong is not None:
            return [Segment(len(rows), error=wrong)]
        *bits, header = answers
        return [Segment(len(rows), header_from_bytes(header), missing_bits(bits, len(rows[0])))]
