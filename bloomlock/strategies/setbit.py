"""SETBIT and GETBIT, one for each bit: the strategies "pipeline" and "transaction".

https://redis.io/docs/latest/commands/setbit/ (answers the old bit), /getbit/, /getrange/,
https://redis.io/docs/latest/develop/interact/transactions/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import WatchError

from bloomlock.arrays import np
from bloomlock.commands import EXEC, MULTI, Replies, encode_arguments
from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Core, Request

from .base import Segment, Strategy, any_missing, encode_each, header_command, header_from_bytes

if TYPE_CHECKING:
    from .base import Flags, Rows, Shard


class PipelineStrategy(Strategy):
    """One round trip through anything that speaks SETBIT; no false negatives, no single winner.

    Concurrent adds of one item may both be answered "new". No bit is ever lost, so what was added
    stays seen.
    """

    name = "pipeline"
    is_atomic = False

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many.

        The header is read last: a generation never returns, so a header that still is the expected
        one says that all bits before it were read or set in that generation.
        """
        commands = [*_bit_commands(shard.key, rows, write), header_command(shard.key)]
        replies = yield from collect(Request(shard.key, commands), repeatable=not write)
        if not any(isinstance(reply, Exception) for reply in replies):
            return [_bits_then_header(replies, len(rows))]
        num_hashes = rows.shape[1]
        *bits, header = replies
        return [
            _one_by_one(bits[start : start + num_hashes], header, write)
            for start in range(0, len(bits), num_hashes)
        ]


class TransactionStrategy(Strategy):
    """One round trip by MULTI and EXEC, neither EVAL nor BITFIELD needed; exact."""

    name = "transaction"

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many."""
        request = Request(shard.key, encode_transaction(shard, rows, write))
        replies = yield from collect(request, repeatable=not write)
        return [decode_transaction(replies, len(rows))]


def encode_transaction(shard: Shard, rows: Rows, write: bool) -> list[bytes]:
    """Return the commands of one transaction for all rows."""
    return [MULTI, *_bit_commands(shard.key, rows, write), header_command(shard.key), EXEC]


def decode_transaction(replies: Replies, count: int) -> Segment:
    """Read the reply of EXEC for `count` rows.

    What is refused before EXEC aborts all of it, what fails in it leaves the rest in force.
    """
    answers = replies[-1]
    if not isinstance(answers, list):
        return Segment(count, error=why_aborted(replies))
    segment = _bits_then_header(answers, count)
    if segment.error is not None and 0 in answers:
        lost = ConnectionLost(segment.error, sent=True, replies=[])
        return segment._replace(error=lost)
    return segment


def why_aborted(replies: Replies) -> Exception:
    """Return why EXEC, the last of the replies, did nothing.

    The reason stands in the reply to the refused command; EXEC only says that it aborted. It is
    nil where a key changed that the connection watched, which only a WATCH that another user of
    the client left on the connection can bring about.
    """
    refused = (reply for reply in replies if isinstance(reply, Exception))
    return next(refused, WatchError("a key was watched and has changed; nothing was done"))


def _bit_commands(key: str, rows: Rows, write: bool) -> list[bytes]:
    """Return one SETBIT (or GETBIT) for each offset of each row."""
    count, name, after = (4, "SETBIT", encode_arguments(1)) if write else (3, "GETBIT", b"")
    before = b"*%d\r\n%b" % (count, encode_arguments(name, key))
    return encode_each(rows.ravel(), before, after)


def _bits_then_header(replies: Replies, count: int) -> Segment:
    """Read the replies of bit commands for `count` rows that are followed by the header's.

    Any error makes the answer to all rows unknown.
    """
    wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if wrong is not None:
        return Segment(count, error=wrong)
    *bits, header = replies
    missing: list[bool] | Flags
    if count == 1:
        missing = [0 in bits]
    else:
        missing = any_missing(np.frombuffer(bytes(bits), np.uint8), len(bits) // count)
    return Segment(count, header_from_bytes(header), missing)


def _one_by_one(bits: Replies, header: object, write: bool) -> Segment:
    """Read the replies about one item where some of the request are errors."""
    for reply in (*bits, header):
        if isinstance(reply, ConnectionLost):
            return Segment(1, error=reply)
    refused = next((reply for reply in (*bits, header) if isinstance(reply, Exception)), None)
    if refused is None:
        return _bits_then_header([*bits, header], 1)
    # If a bit was set by this add, the item may be there, although another bit was refused.
    if write and 0 in bits:
        return Segment(1, error=ConnectionLost(refused, sent=True, replies=[]))
    return Segment(1, error=refused)
