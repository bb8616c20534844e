"""One SETBIT or GETBIT for each bit in a plain pipeline: one round trip, not atomic.

Concurrent adds of one item may both be told "new", or neither wins before the other is half done.
No bit is ever lost, so what was added stays seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import Core, Request, collect

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
        return [bits_then_header(replies, len(rows))]
