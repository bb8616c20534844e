"""BITFIELD: header read and all bits tested and set in one atomic command.

https://redis.io/docs/latest/commands/bitfield/ and /bitfield_ro/ (Redis 6.0).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from bloomlock.arrays import np
from bloomlock.commands import Replies, encode_arguments
from bloomlock.compiled import core
from bloomlock.delivery import collect
from bloomlock.effects import ConnectionLost, Core, Parallel, Pipeline, Request
from bloomlock.parallel import in_parallel
from bloomlock.sizing import MAX_SHARDS

from .base import Segment, Strategy, any_missing, encode_offsets, error_of, unfilled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.hashing import Hasher

    from .base import Answered, Rows, Shard

OPERATIONS_PER_COMMAND = 1000
"""Bits touched by one command of a batch: about 0.2 ms of the server's time."""

OPERATIONS_IN_SHARDS = 16_000
"""Bits of a batch over several shards that is encoded at once."""

COMMANDS_PER_WRITE = 4

# Encoding is most of the work, so an operation is text around its offset and nothing else.
# Index: the number of digits of the offset, at most 10 below 2^32.
_SET = [f"$3\r\nSET\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(11)]
_SET_END = "\r\n$1\r\n1\r\n"
_GET = [f"$3\r\nGET\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(11)]
_GET_END = "\r\n"
_LEAST = [0, *(10**power for power in range(10))]


class AtomicStrategy(Strategy):
    """One round trip, no script; exact."""

    name = "atomic"
    bits_per_exchange = 2**18
    # Arrays cost 70 to 100 microseconds whatever their size: batches of 1 to 8 items are 1.6 to 2.3
    # times as fast without, of 16 items 1.3 times.
    few_bits = 256

    def few_items(self, hasher: Hasher) -> int:
        """See Strategy.few_items; the compiled core has no use for arrays."""
        if hasher.compiled is None:
            return super().few_items(hasher)
        bits = OPERATIONS_PER_COMMAND
        if hasher.shards > 1:
            # Where each shard gets one command, all are encoded before they are sent in any case.
            bits = max(OPERATIONS_IN_SHARDS, hasher.shards * OPERATIONS_PER_COMMAND)
        return bits // hasher.num_hashes

    def few_each(
        self, shards: Sequence[Shard], hasher: Hasher, items: Sequence[bytes], *, write: bool
    ) -> Core[Answered]:
        """See Strategy.few_each."""
        num_hashes, parts = hasher.num_hashes, None
        if hasher.compiled is not None:
            most = max(1, OPERATIONS_PER_COMMAND // num_hashes)
            parts = hasher.compiled.operations(list(items), write, most)
        if not parts:
            return (yield from super().few_each(shards, hasher, items, write=write))
        requests = []
        for number, indices, operations in parts:
            key = shards[number].key
            command = _opening(key, len(indices) * num_hashes, write) + operations
            requests.append(Request(key, [command]))
        outcomes: list[Replies]
        if len(requests) == 1:
            (request,) = requests
            try:
                outcomes = [(yield request)]
            except ConnectionLost as lost:
                outcomes = [(yield from collect(request, repeatable=not write, lost=lost))]
        else:
            outcomes = yield from _ask_each(requests, repeatable=not write)
        return [
            (indices, [_few_segment(replies[0], len(indices), num_hashes)])
            for (_, indices, _), replies in zip(parts, outcomes, strict=True)
        ]

    def one(self, shard: Shard, offsets: list[int], *, write: bool) -> Core[Segment]:
        """See Strategy.one."""
        request = Request(shard.key, [encode_few(shard, offsets, write)])
        try:
            (reply,) = yield request
        except ConnectionLost as lost:
            reply = lost
            if not (write and lost.sent):
                (reply,) = yield from collect(request, repeatable=not write)
        if not isinstance(reply, list):
            return Segment(1, error=error_of(reply))
        # Only a header of 0 could be taken for a bit, and that one is looked at first.
        return Segment(1, reply[0], [0 in reply])

    def few(
        self, shard: Shard, rows: Sequence[Sequence[int]], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.few; all rows are one command."""
        command = encode_few(shard, list(chain.from_iterable(rows)), write)
        (reply,) = yield from collect(Request(shard.key, [command]), repeatable=not write)
        return [_few_segment(reply, len(rows), len(rows[0]))]

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many; several commands are on their way at once."""
        writes = Bitfields(shard, rows, write)
        replies = yield from collect(Pipeline(shard.key, writes), repeatable=not write)
        return writes.decode(replies)


def _ask_each(requests: Sequence[Request], *, repeatable: bool) -> Core[list[Replies]]:
    """Do what `collect` does for requests to several shards, all under way at once."""
    outcomes = yield Parallel(requests)
    lost = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, ConnectionLost)]
    if lost:
        again = [collect(requests[i], repeatable=repeatable, lost=outcomes[i]) for i in lost]
        for index, replies in zip(lost, (yield from in_parallel(again)), strict=True):
            outcomes[index] = replies
    answered: list[Replies] = outcomes
    return answered


def encode_few(shard: Shard, offsets: list[int], write: bool) -> bytes:
    """Return one BITFIELD for some offsets."""
    if core is not None:
        return core.encode_bitfield(_opening(shard.key, len(offsets), write), offsets, write)
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
    return _opening(shard.key, len(offsets), write) + (operations + end).encode()


class Bitfields:
    """Rows as BITFIELDs of up to 1000 operations, encoded while others are on their way."""

    def __init__(self, shard: Shard, rows: Rows, write: bool) -> None:
        self._shard = shard
        self._rows = rows
        self._write = write
        self._size: int = max(1, OPERATIONS_PER_COMMAND // rows.shape[1])

    def __len__(self) -> int:
        return math.ceil(len(self._rows) / self._size)

    def __iter__(self) -> Iterator[list[bytes]]:
        step = self._size * COMMANDS_PER_WRITE
        for start in range(0, len(self._rows), step):
            yield self._encode(self._rows[start : start + step])

    def _encode(self, rows: Rows) -> list[bytes]:
        offsets, step = rows.ravel(), self._size * rows.shape[1]
        starts = range(0, len(offsets), step)
        if core is not None:
            parts = [offsets[start : start + step] for start in starts]
            openings = [_opening(self._shard.key, len(part), self._write) for part in parts]
            return [
                core.encode_bitfield(opening, part, self._write)
                for opening, part in zip(openings, parts, strict=True)
            ]
        heads, end = (_SET, _SET_END) if self._write else (_GET, _GET_END)
        before, after = heads[0][: heads[0].index("$0")], end.removeprefix("\r\n")
        table = encode_offsets(offsets, before.encode(), after.encode())
        return [
            _opening(self._shard.key, len(part), self._write) + unfilled(part)
            for part in (table[start : start + step] for start in starts)
        ]

    def decode(self, replies: Replies) -> list[Segment]:
        """Read each command's header and old bits."""
        count, num_hashes = self._rows.shape
        return [
            _segment(reply, min(self._size, count - index * self._size), num_hashes)
            for index, reply in enumerate(replies)
        ]


@lru_cache(maxsize=4096)
def _opening(key: str, operations: int, write: bool) -> bytes:
    return b"*%d\r\n%b" % (5 + operations * (4 if write else 3), _arguments(key, write))


@lru_cache(maxsize=2 * MAX_SHARDS)
def _arguments(key: str, write: bool) -> bytes:
    return encode_arguments("BITFIELD" if write else "BITFIELD_RO", key, "GET", "i64", "0")


def _few_segment(reply: object, count: int, num_hashes: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    if core is not None:
        return Segment(count, reply[0], core.read_bits(reply, num_hashes))
    bits = reply[1:]
    starts = range(0, len(bits), num_hashes)
    return Segment(count, reply[0], [0 in bits[start : start + num_hashes] for start in starts])


def _segment(reply: object, count: int, num_hashes: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=error_of(reply))
    bits = np.frombuffer(bytes(reply[1:]), np.uint8)
    return Segment(count, reply[0], any_missing(bits, num_hashes))
