"""The strategies that test and set bits by commands: "atomic", "pipeline", "transaction".

"atomic" is BITFIELD: one atomic command reads the header and tests and sets all bits (Redis 6.0).
The others send GETBIT or SETBIT, which returns the old bit, for each bit.

https://redis.io/docs/latest/commands/bitfield/, /bitfield_ro/, /setbit/, /getbit/, /getrange/,
https://redis.io/docs/latest/develop/interact/transactions/
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from redis.exceptions import WatchError

from bloomlock.commands import EXEC, MULTI, encode_arguments, send_or_lost
from bloomlock.descriptor import header_from_bytes
from bloomlock.effects import ConnectionLost, Core, Pipeline, Replies, Request
from bloomlock.sizing import MAX_SHARDS

from .base import Segment, Strategy, error_of, header_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.hashing import Hasher

    from .base import Segments, Shard

OPERATIONS_PER_COMMAND = 1000
"""Bits touched by one command of a batch: about 0.2 ms of the server's time."""

COMMANDS_PER_WRITE = 4

# The text of an operation before its offset, by the number of digits of the offset.
_HEADS = [
    [f"$3\r\n{name}\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(11)]
    for name in ("GET", "SET")
]
_ENDS = ["\r\n", "\r\n$1\r\n1\r\n"]


class AtomicStrategy(Strategy):
    """One round trip, no script; exact."""

    name = "atomic"
    bits_per_exchange = 2**18

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        commands = Bitfields(shard, items, write)
        request = commands.request()
        try:
            replies = yield request
        except ConnectionLost as lost:
            replies = yield from send_or_lost(request, repeatable=not write, lost=lost)
        return commands.decode(replies)

    def one(self, shards: Sequence[Shard], item: bytes, *, write: bool) -> Core[Segment]:
        _, segment = yield from self.one_beside((), shards, item, write=write)
        return segment

    def one_beside(
        self, others: Sequence[bytes], shards: Sequence[Shard], item: bytes, *, write: bool
    ) -> Core[tuple[Replies, Segment]]:
        """Send other commands in the same request; return their replies too."""
        hasher = shards[0].slices.hasher
        if hasher.places is not None:
            number, operations = hasher.places.operations(hasher.words([item]), write)
        else:
            number, offsets = hasher.locate(item)
            operations = encode_offsets(offsets, write)
        key = shards[number].key
        request = Request(key, [*others, _opening(key, hasher.num_hashes, write) + operations])
        try:
            *replies, reply = yield request
        except ConnectionLost as lost:
            found = send_or_lost(request, repeatable=not write, lost=lost)
            *replies, reply = yield from found
        if not isinstance(reply, list):
            return replies, Segment(1, error=error_of(reply))
        # A header of 0 would look like a bit that is missing. The caller compares headers first.
        return replies, Segment(1, reply[0], [0 in reply])


class Bitfields:
    """Items of one shard as BITFIELDs of up to 1000 operations, each encoded before its write."""

    def __init__(self, shard: Shard, items: Sequence[bytes], write: bool) -> None:
        self._shard = shard
        self._hasher = hasher = shard.hasher
        self._items = items
        self._write = write
        self._size = max(1, OPERATIONS_PER_COMMAND // hasher.num_hashes)

    def request(self) -> Request | Pipeline:
        if len(self._items) <= self._size:
            return Request(self._shard.key, [self._encode(0)])
        return Pipeline(self._shard.key, math.ceil(len(self._items) / self._size), self.writes)

    def writes(self) -> Iterator[list[bytes]]:
        starts = range(0, len(self._items), self._size)
        for at in range(0, len(starts), COMMANDS_PER_WRITE):
            yield [self._encode(start) for start in starts[at : at + COMMANDS_PER_WRITE]]

    def _encode(self, start: int) -> bytes:
        hasher, items = self._hasher, self._items[start : start + self._size]
        if hasher.places is not None:
            _, operations = hasher.places.operations(hasher.words(items), self._write)
        else:
            offsets = [offset for item in items for offset in hasher.locate(item)[1]]
            operations = encode_offsets(offsets, self._write)
        return _opening(self._shard.key, len(items) * hasher.num_hashes, self._write) + operations

    def decode(self, replies: Replies) -> list[Segment]:
        count, size = len(self._items), self._size
        return [
            _segment(reply, min(size, count - index * size), self._hasher)
            for index, reply in enumerate(replies)
        ]


@lru_cache(maxsize=4096)
def _opening(key: str, operations: int, write: bool) -> bytes:
    return b"*%d\r\n%b" % (5 + operations * (4 if write else 3), _arguments(key, write))


@lru_cache(maxsize=2 * MAX_SHARDS)
def _arguments(key: str, write: bool) -> bytes:
    return encode_arguments("BITFIELD" if write else "BITFIELD_RO", key, "GET", "i64", "0")


def _segment(reply: object, count: int, hasher: Hasher) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    if hasher.places is not None:
        return Segment(count, reply[0], hasher.places.missing(reply))
    _, *bits = reply
    rows = zip(*[iter(bits)] * hasher.num_hashes, strict=True)
    return Segment(count, reply[0], [0 in row for row in rows])


def encode_offsets(offsets: Sequence[int], write: bool) -> bytes:
    r"""Return the operations of BITFIELD on some bits.

    >>> encode_offsets([7, 1234], False)
    b'$3\r\nGET\r\n$2\r\nu1\r\n$1\r\n7\r\n$3\r\nGET\r\n$2\r\nu1\r\n$4\r\n1234\r\n'
    """
    heads, end = _HEADS[write], _ENDS[write]
    return (end.join([heads[len(text)] + text for text in map(str, offsets)]) + end).encode()


class PipelineStrategy(Strategy):
    """One round trip to any server that has SETBIT; no false negatives, no single winner.

    Two concurrent adds of one item may both return "new". No bit is ever lost, so an added item
    stays seen.
    """

    name = "pipeline"
    is_atomic = False

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        """See Strategy.ask_shard.

        The header is read last. A generation never returns, so if the header is the expected one,
        all bits before it were read or set in that generation.
        """
        commands = [*_bit_commands(shard, items, write), header_command(shard.key)]
        replies = yield from send_or_lost(Request(shard.key, commands), repeatable=not write)
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
    """One round trip by MULTI and EXEC, without EVAL and BITFIELD; exact."""

    name = "transaction"

    def ask_shard(self, shard: Shard, items: Sequence[bytes], *, write: bool) -> Core[Segments]:
        """See Strategy.ask_shard.

        A command that is refused before EXEC aborts the transaction. A command that fails in it
        does not undo the others.
        """
        commands = [*_bit_commands(shard, items, write), header_command(shard.key)]
        request = Request(shard.key, [MULTI, *commands, EXEC])
        replies = yield from send_or_lost(request, repeatable=not write)
        if not isinstance(replies[-1], list):
            return [Segment(len(items), error=why_aborted(replies))]
        *bits, header = replies[-1]
        wrong = next((reply for reply in replies[-1] if isinstance(reply, Exception)), None)
        if wrong is not None:
            lost = ConnectionLost(wrong, sent=True, replies=[])
            return [Segment(len(items), error=lost if 0 in bits else wrong)]
        return [Segment(len(items), header_from_bytes(header), _missing(bits, len(items)))]


def why_aborted(replies: Replies) -> Exception:
    """Return why EXEC, whose reply is the last one, did nothing.

    The reply to the refused command has the reason; EXEC only says that it aborted. EXEC is nil
    if a watched key has changed. That happens only if another user of the client left a WATCH on
    the connection.
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
        # This add has set a bit, so the item may be there although another bit was refused.
        unknown = ConnectionLost(wrong[0], sent=True, replies=[])
        return Segment(1, error=unknown if write and 0 in bits else wrong[0])
    return Segment(1, header_from_bytes(header), _missing(bits, 1))
