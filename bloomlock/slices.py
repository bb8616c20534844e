"""Several bitmaps in the string of a shard: with a time window, or where a filter grows. Pure.

docs/internals/format.md says how they lie behind the header, docs/internals/protocols.md how
scripts/items.lua tests and adds in one step, so that no client knows an epoch of a window.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from .sizing import FIRST_BYTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .hashing import Hasher

LAG = 16
"""A sixteenth of a slice is for items that are added before its fill is looked at again."""

_LAYOUT = struct.Struct(">QIB")
_STATE = struct.Struct(">QH6x")


class Slice(NamedTuple):
    """One slice, as it lies in the string of each shard.

    Attributes:
        first: Its first bit in the string.
        bits: Bits in each shard, m.
        num_hashes: Bits of an item, k.
        error_rate: Its part of the rate.
        capacity: Items that it is for, in all shards.
        room: Items of one shard that keep its rate; the next slice is added before.
    """

    first: int
    bits: int
    num_hashes: int
    error_rate: float
    capacity: int
    room: int

    @property
    def full_at(self) -> float:
        return self.room * (1 - 1 / LAG)

    @property
    def size(self) -> int:
        return (self.bits + 7) // 8

    @property
    def first_byte(self) -> int:
        return self.first // 8

    @property
    def end_byte(self) -> int:
        return self.first_byte + self.size


class SliceState:
    """What a client knows of the slices of one shard; a plain one has one that does not grow.

    Attributes:
        hasher: Places items in all slices that there can be.
        count: How many there are, as the last reply said; a wrong number costs a round trip.
        num_offsets: Bits of an item in all of them.
        layout: The same as scripts take it; see slices.lua.
        openings: How calls of the script begin with that layout.
        has_tombstones: Whether a reply said that items were discarded.
    """

    __slots__ = ("_ring", "count", "has_tombstones", "hasher", "layout", "num_offsets", "openings")

    def __init__(self, hasher: Hasher, epoch_us: int, slices: Sequence[Slice]) -> None:
        self.hasher = hasher
        self.has_tombstones = False
        self._ring = epoch_us, slices[0].size if epoch_us else 0
        self.learn(len(slices) if epoch_us else 1)

    def learn(self, count: int) -> None:
        """Note how many slices there are.

        >>> from bloomlock.hashing import Hasher
        >>> slices = [Slice(192, 80, 7, 1e-3, 9, 9)] * 3
        >>> SliceState(Hasher(80, 7), 10**6, slices).layout.hex(" ", 4)
        '0000 0000000f 42400000 000a0307'
        """
        self.count = count
        self.layout = _LAYOUT.pack(*self._ring, count) + bytes(self.hasher.hashes[:count])
        self.num_offsets = sum(self.hasher.hashes[:count])
        self.openings: dict[tuple[str, bytes], bytes] = {}


def live_slices(
    slices: Sequence[Slice], epoch_us: int, start: bytes, now_us: int
) -> Sequence[Slice]:
    """Return the slices that count of a shard whose string begins with `start`."""
    number, used = _STATE.unpack_from(start, FIRST_BYTE - _STATE.size)
    if not epoch_us:
        return slices[: 1 + number]
    ring = len(slices)
    oldest = max(number, now_us // epoch_us) - ring + 1
    places = [epoch % ring for epoch in range(oldest, number + 1)]
    return [slices[place] for place in places if used >> place & 1]


def slices_in(start: bytes | memoryview) -> int:
    number, _ = _STATE.unpack_from(start, FIRST_BYTE - _STATE.size)
    return 1 + int(number)
