"""One SETBIT or GETBIT for each bit in a plain pipeline: one round trip, not atomic.

Concurrent adds of one item may both be told "new", or neither wins before the other is half done.
No bit is ever lost, so what was added stays seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.descriptor import header_from_bytes

from .base import CommandStrategy, Segment, missing_bits
from .bits import bit_commands, header_command

if TYPE_CHECKING:
    from bloomlock.commands import Replies

    from .base import Rows, Shard


class PipelineStrategy(CommandStrategy):
    """One round trip through anything that speaks SETBIT; no false negatives, no single winner."""

    name = "pipeline"
    whole = False

    def encode(self, shard: Shard, rows: Rows, write: bool) -> list[bytes]:
        """Return the bits, then the header.

        The header comes last: a generation never returns, so a header that still is the expected
        one says that all bits before it were read or set in that generation.
        """
        return [*bit_commands(shard.key, rows, write), header_command(shard.key)]

    def decode(self, replies: Replies, rows: Rows) -> list[Segment]:
        """Read the old bits; any error makes the answer to all rows unknown."""
        return [bits_then_header(replies, rows)]


def bits_then_header(replies: Replies, rows: Rows) -> Segment:
    """Read the replies of bit commands that are followed by the header's."""
    wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if wrong is not None:
        return Segment(len(rows), error=wrong)
    *bits, header = replies
    return Segment(len(rows), header_from_bytes(header), missing_bits(bits, len(rows[0])))
