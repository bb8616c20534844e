"""MULTI, one SETBIT or GETBIT for each bit, the header, EXEC: one round trip, atomic.

https://redis.io/docs/latest/develop/interact/transactions/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import WatchError

from bloomlock.effects import EXEC, MULTI, ConnectionLost, Core, Replies, Request, collect

from .base import Segment, Strategy
from .bits import bit_commands, bits_then_header, header_command

if TYPE_CHECKING:
    from .base import Rows, Shard


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
    return [MULTI, *bit_commands(shard.key, rows, write), header_command(shard.key), EXEC]


def decode_transaction(replies: Replies, count: int) -> Segment:
    """Read the reply of EXEC for `count` rows.

    What is refused before EXEC aborts all of it, what fails in it leaves the rest in force.
    """
    answers = replies[-1]
    if not isinstance(answers, list):
        return Segment(count, error=why_aborted(replies))
    segment = bits_then_header(answers, count)
    if segment.error is not None and 0 in answers:
        lost = ConnectionLost(segment.error, sent=True, replies=[])
        return segment._replace(error=lost)
    return segment


def why_aborted(replies: Replies) -> Exception:
    """Return why EXEC, the last of the replies, did nothing.

    The reason stands in the reply to the refused command, EXEC only says that it aborted. It is
    nil where a key changed that the connection watched, which only a WATCH that a stranger left
    on a connection of the client can bring about.
    """
    refused = (reply for reply in replies if isinstance(reply, Exception))
    return next(refused, WatchError("a key was watched and has changed; nothing was done"))
