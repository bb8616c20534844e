"""Filters that grow: a shard has slices, and only the newest takes new items.

To add is one script call, which tests all slices and sets bits in the newest, if the shard has as
many slices as the client believes. Else nothing is done, and the header in the reply says how many
there are: the client asks again, once for each growth it has not heard of. To test few items is one
BITFIELD_RO of the bits in all slices; many go by the script, which reads fewer bits. What is found
is there; what is not is asked again if the header in the same reply says that there are more
slices.

No slice loses a bit and only the newest gets any, so an item that is in a sealed slice is found
there by every later test, and an item that is new was in no slice when its bits were set.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.delivery import collect
from bloomlock.descriptor import (
    HEADER_BYTES,
    is_header,
    with_slices,
    without_slices,
)
from bloomlock.effects import Pipeline, Request
from bloomlock.errors import ConfigurationError
from bloomlock.refusals import is_missing
from bloomlock.scripts import Script

from .atomic import encode_few
from .base import Chain, Segment, Shard, Strategy, error_of, header_from_bytes
from .lua import Calls, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Core

    from .base import Rows

_GROWING = Script("growing")


class GrowingStrategy(Strategy):
    """One round trip, and one more for each growth that the client has not heard of; exact.

    Args:
        name: That of the strategy that the caller asked for.
    """

    is_growing = True
    bits_per_exchange = 2**18
    few_bits = 256

    def __init__(self, name: str) -> None:
        self.name = name

    def check_server(self, key: str) -> Core[None]:
        """See Strategy.check_server."""
        request = Request(key, [encode_command("EVAL", "return 1", 0)])
        (reply,) = yield from collect(request, repeatable=True)
        if isinstance(reply, Exception) and is_missing(reply):
            raise ConfigurationError(
                f"a filter that grows needs a server that runs scripts for this client; it "
                f"answered {reply}"
            )

    def one(self, shard: Shard, offsets: list[int], *, write: bool) -> Core[Segment]:
        """See Strategy.one; a row is the item."""
        (segment,) = yield from self.few(shard, [offsets], write=write)
        return segment

    def few(
        self, shard: Shard, rows: Sequence[Sequence[int]], *, write: bool
    ) -> Core[list[Segment]]:
        """See Strategy.few; rows are items."""
        chain = _chain_of(shard)
        missing = [True] * len(rows)
        todo: Sequence[int] = range(len(rows))
        while True:
            count = chain.count
            hashes = chain.hasher.hashes[:count]
            some = [chain.hasher.offsets(rows[index], count) for index in todo]  # type: ignore[arg-type]
            if write:
                packed = b"".join(struct.pack(f">{sum(hashes)}I", *each) for each in some)
                call = ([shard.key], (*_opening(shard, count, write), packed))
                (reply,) = yield from _GROWING.call([call], repeatable=False)
            else:
                named = shard._replace(digits=chain.hasher.digits[count - 1])
                command = encode_few(named, [offset for each in some for offset in each], False)
                request = Request(shard.key, [command])
                (reply,) = yield from collect(request, repeatable=True)
            if not isinstance(reply, list):
                return [Segment(len(rows), error=error_of(reply))]
            header = header_from_bytes(reply[0]) if write else reply[0]
            if not shard.has(without_slices(header)):
                return [Segment(len(rows), without_slices(header) if is_header(header) else header)]
            chain.learn(header)
            if write and len(reply) > 1:
                answers = [flag == ord("1") for flag in reply[1]]
                return [Segment(len(rows), shard.header, answers)]
            if not write:
                for index, is_missing_now in zip(todo, _missing(reply, hashes), strict=True):
                    missing[index] = is_missing_now
                todo = [index for index in todo if missing[index]]
                if not todo or chain.count <= count:
                    return [Segment(len(rows), shard.header, missing)]

    def any_number(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.any_number; digests are no items."""
        return self.many(shard, rows, write=write)

    def many(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.many; rows are digests."""
        chain = _chain_of(shard)
        outcomes = _Outcomes(len(rows), shard.header)
        todo = np.arange(len(rows), dtype=np.intp)
        while todo.size:
            count = chain.count
            calls = _GrowingCalls(shard, chain.hasher.rows(rows[todo], count), count, write)
            replies = yield from collect(Pipeline(shard.key, calls), repeatable=not write)
            yield from calls.repeat_unknown(replies)
            again = []
            start = 0
            for segment in calls.decode(replies):
                mine = todo[start : start + segment.rows]
                start += segment.rows
                header = segment.header
                if segment.error is not None or not shard.has(without_slices(header)):
                    outcomes.end(mine, segment)
                    continue
                chain.learn(header)
                if segment.missing is None:
                    again.append(mine)
                    continue
                outcomes.missing[mine] = np.asarray(segment.missing)
            todo = np.concatenate(again) if again else todo[:0]
        return outcomes.segments()


class _Ended(NamedTuple):
    rows: np.ndarray
    segment: Segment


class _Outcomes:
    """What is known of many rows, which are not answered in order."""

    def __init__(self, count: int, header: int) -> None:
        self.missing = np.ones(count, np.bool_)
        self._header = header
        self._ended: list[_Ended] = []

    def end(self, rows: np.ndarray, segment: Segment) -> None:
        """Note that rows have no answer of this generation."""
        self._ended.append(_Ended(rows, segment))

    def segments(self) -> list[Segment]:
        """Return the answers in the order of the rows."""
        if not self._ended:
            return [Segment(len(self.missing), self._header, self.missing)]
        which = np.zeros(len(self.missing), np.intp)
        for number, ended in enumerate(self._ended, 1):
            which[ended.rows] = number
        starts = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(which)]
        found = []
        for start, stop in pairwise(starts):
            number = which[start]
            if not number:
                found.append(Segment(stop - start, self._header, self.missing[start:stop]))
                continue
            _, header, _, error, _ = self._ended[number - 1].segment
            found.append(Segment(stop - start, without_slices(header), error=error))
        return found


class _GrowingCalls(Calls):
    """Rows of all slices as calls of the script."""

    def __init__(self, shard: Shard, rows: Rows, count: int, write: bool) -> None:
        super().__init__(_GROWING, shard, rows, write)
        self._count = count

    def _arguments(self, index: int) -> tuple[bytes | int, ...]:
        rows = self._rows[index * self._size : (index + 1) * self._size]
        return (*_opening(self._shard, self._count, self._write), pack(rows))


def _chain_of(shard: Shard) -> Chain:
    if shard.chain is None:
        raise TypeError(f"the shard {shard.key!r} has no slices")
    return shard.chain


def _opening(shard: Shard, count: int, write: bool) -> tuple[bytes, int, bytes]:
    """Return what a call begins with for a shard that has `count` slices."""
    chain = _chain_of(shard)
    # A client that has not heard of forgotten items is to get another header, and so to hear.
    expected = shard.also if shard.also and chain.forgets else shard.header
    header = with_slices(expected, count).to_bytes(HEADER_BYTES, "big")
    return header, int(write), bytes(chain.hasher.hashes[:count])


def _missing(reply: Replies, hashes: Sequence[int]) -> list[bool]:
    """Return for each item whether each slice lacks a bit of it, from a header and bits."""
    width, answers = sum(hashes), []
    for start in range(1, len(reply), width):
        first, is_missing_now = start, True
        for num_hashes in hashes:
            if 0 not in reply[first : first + num_hashes]:
                is_missing_now = False
                break
            first += num_hashes
        answers.append(is_missing_now)
    return answers
