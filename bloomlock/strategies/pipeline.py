"""One SETBIT or GETBIT for each bit in a plain pipeline: one round trip, not atomic.

Concurrent adds of one item may both be told "new", or neither wins before the other is half done.
No bit is ever lost, so what was added stays seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.effects import ConnectionLost, Core, Replies, Request, collect

from .base import Segment, Strategy
from .bits import bit_commands, bits_then_header, header_command

if TYPE_CHECKING:
    from .base import Rows, Shard


class PipelineStrategy(Strategy):
    """One round trip through anything that speaks SETBIT; no false negatives, no single winner."""

    name = "pipeline"
    whole = False

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange.

        The header is read last: a generation never returns, so a header that still is the expected
        one says that all bits before it were read or set in that generation.
        """
        commands = [*bit_commands(shard.key, rows, write), header_command(shard.key)]
        replies = yield from collect(Request(shard.key, commands), repeatable=not write)
        if not any(isinstance(reply, Exception) for reply in replies):
            return [bits_then_header(replies, len(rows))]
        num_hashes = rows.shape[1]
        *bits, header = replies
        return [
            _one_by_one(bits[start : start + num_hashes], header, write)
            for start in range(0, len(bits), num_hashes)
        ]


def _one_by_one(bits: Replies, header: object, write: bool) -> Segment:
    """Read the replies about one item where some of the request are errors."""
    for reply in (*bits, header):
        if isinstance(reply, ConnectionLost):
            return Segment(1, error=reply)
    refused = next((reply for reply in (*bits, header) if isinstance(reply, Exception)), None)
    if refused is None:
        return bits_then_header([*bits, header], 1)
    # If a bit was set by this add, the item may be there, although another bit was refused.
    if write and 0 in bits:
        return Segment(1, error=ConnectionLost(refused, sent=True, replies=[]))
    return Segment(1, error=refused)
