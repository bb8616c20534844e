"""SETBIT and GETBIT, one for each bit: the strategies "pipeline" and "transaction".

https://redis.io/docs/latest/commands/setbit/ (answers the old bit), /getbit/, /getrange/,
https://redis.io/docs/latest/develop/interact/transactions/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import WatchError

from bloomlock.commands import EXEC, MULTI, Replies, encode_arguments
from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Core, Request

from .base import Segment, Strategy, header_command, header_from_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Segments, Shard


class PipelineStrategy(Strategy):
    """One round trip through anything that speaks SETBIT; no false negatives, no single winner.

    Concurrent adds of one item may both be answered "new". No bit is ever lost, so what was added
    stays seen.
    """

    name = "pipeline"
    is_atomic = False

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        """See Strategy.ask_shard.

        The header is read last: a generation never returns, so a header that still is the expected
        one says that all bits before it were read or set in that generation.
        """
        commands = [*_bit_commands(shard, items, write), header_command(shard.key)]
        replies = yield from collect(Request(shard.key, commands), repeatable=not write)
        *bits, header = replies
        if not any(isinstance(reply, Exception) for reply in replies):
            missing = _missing(bits, len(items))
            return [Segment(len(items), header_from_bytes(header), missing)]
        step = shard.hasher.num_hashes
        return [
            _one_by_one(bits[start : start + step], header, write)
            for start in range(0, len(bits), step)
        ]


class TransactionStrategy(Strategy):
    """One round trip by MULTI and EXEC, neither EVAL nor BITFIELD needed; exact."""

    name = "transaction"

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        """See Strategy.ask_shard.

        What is refused before EXEC aborts all of it, what fails in it leaves the rest in force.
        """
        commands = [*_bit_commands(shard, items, write), header_command(shard.key)]
        request = Request(shard.key, [MULTI, *commands, EXEC])
        replies = yield from collect(request, repeatable=not write)
        if not isinstance(replies[-1], list):
            return [Segment(len(items), error=why_aborted(replies))]
        *bits, header = replies[-1]
        wrong = next((reply for reply in replies[-1] if isinstance(reply, Exception)), None)
        if wrong is not None:
            lost = ConnectionLost(wrong, sent=True, replies=[])
            return [Segment(len(items), error=lost if 0 in bits else wrong)]
        return [Segment(len(items), header_from_bytes(header), _missing(bits, len(items)))]


def why_aborted(replies: Replies) -> Exception:
    """Return why EXEC, the last of the replies, did nothing.

    The reason stands in the reply to the refused command; EXEC only says that it aborted. It is
    nil where a key changed that the connection watched, which only a WATCH that another user of
    the client left on the connection can bring about.
    """
    refused = (reply for reply in replies if isinstance(reply, Exception))
    return next(refused, WatchError("a key was watched and has changed; nothing was done"))


def _bit_commands(shard: Shard, items: Sequence[bytes], write: bool) -> list[bytes]:
    count, name, after = (4, "SETBIT", encode_arguments(1)) if write else (3, "GETBIT", b"")
    before, end = b"*%d\r\n%b$" % (count, encode_arguments(name, shard.key)), b"\r\n" + after
    heads = [b"%b%d\r\n" % (before, digits) for digits in range(11)]
    texts = [b"%d" % offset for item in items for offset in shard.hasher.locate(item)[1]]
    return [heads[len(text)] + text + end for text in texts]


def _missing(bits: Replies, count: int) -> list[bool]:
    step = len(bits) // count
    return [0 in bits[start : start + step] for start in range(0, len(bits), step)]


def _one_by_one(bits: Replies, header: Any, write: bool) -> Segment:
    wrong = [reply for reply in (*bits, header) if isinstance(reply, Exception)]
    lost = next((reply for reply in wrong if isinstance(reply, ConnectionLost)), None)
    if lost is not None:
        return Segment(1, error=lost)
    if wrong:
        # If a bit was set by this add, the item may be there, although another bit was refused.
        unknown = ConnectionLost(wrong[0], sent=True, replies=[])
        return Segment(1, error=unknown if write and 0 in bits else wrong[0])
    return Segment(1, header_from_bytes(header), _missing(bits, 1))
