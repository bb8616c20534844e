"""Several bitmaps in the string of a shard: those of a time window, and those of growth. Pure.

docs/internals/format.md has the formulas and says how they lie behind the header,
docs/internals/protocols.md how scripts/items.lua tests and adds in one step, so that no client
knows an epoch of a window. Growth is that of P. S. Almeida, C. Baquero, N. Preguiça, D. Hutchison,
"Scalable Bloom Filters", 2007.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from . import sizing
from .errors import ConfigurationError
from .sizing import (
    FIRST_BIT,
    FIRST_BYTE,
    MAX_CAPACITY,
    MAX_HASHES,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    RATE_TOLERANCE,
    USUAL_SHARD_BITS,
    Size,
    check_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .hashing import Hasher

LAG = 16
"""A sixteenth of a slice is for items that are added before its fill is looked at again."""

OTHER, DONE, GROWN, DONE_BESIDE_TOMBSTONES = range(4)
"""What claims.lua and scripted.lua answer first: nothing is done, because the shard is of another
generation or its tombstones were evicted; done; nothing is done, because it has another number of
slices; done, and it has tombstones."""

_LAYOUT = struct.Struct(">QIB")
_STATE = struct.Struct(">QH6x")


class Slice(NamedTuple):
    """One slice, as it lies in the string of each shard.

    Attributes:
        first: Its first bit in the string.
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
    """A client's knowledge of the slices of one shard; a plain shard has one slice.

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


# -- time windows --------------------------------------------------------------------------------

USUAL_SLICES = 6
MIN_SLICES, MAX_SLICES = 2, 12

USUAL_SLICE_BITS = 2**23
"""An add wipes a slice at most: a MiB takes the server a millisecond."""

MIN_SLICE_US = 100_000
MAX_WINDOW_US = 10 * 365 * 86_400 * 10**6


@dataclass(frozen=True)
class Window:
    """For how long a filter remembers items; see BloomFilter.

    Attributes:
        length: A timedelta, or seconds, for which an item is remembered at least.
        slices: Into how many parts the window is divided. An item is forgotten one of them later at
            most, 2 to 12. None: 6.
        refresh: Whether an `add` of an item that is there refreshes it.
    """

    length: timedelta | float
    slices: int | None = None
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class Ring:
    """The slices of a window, as all clients of a filter agree on them."""

    length_us: int
    slices: int

    @property
    def length(self) -> timedelta:
        return timedelta(microseconds=self.length_us)

    @property
    def epoch_us(self) -> int:
        return -(-self.length_us // self.slices)

    def __str__(self) -> str:
        return f"{self.length} in {self.slices} slices"

    def slice_rate(self, error_rate: float) -> float:
        # An item is there by mistake if it is in one slice by mistake: the places of its bits are
        # the same in all, but other items set them.
        return error_rate / (self.slices + 1)

    def slices_for(
        self,
        capacity: int,
        error_rate: float,
        num_hashes: int,
        shards: int | None,
    ) -> tuple[Size, tuple[Slice, ...]]:
        """Return the size of a slice, and all slices; without `shards` none is above a MiB."""
        items, rate = -(-capacity // self.slices), self.slice_rate(error_rate)
        ring = self.slices + 1
        size = sizing.size_for(
            items,
            rate,
            num_hashes=num_hashes,
            shards=shards,
            usual_bits=min(USUAL_SLICE_BITS, USUAL_SHARD_BITS // ring),
        )
        room, each = math.ceil(items / size.shards), 8 * ((size.shard_bits + 7) // 8)
        if ring * each > MAX_SHARD_BITS:
            raise sizing.too_large(capacity, error_rate, ring * size.num_bits, shards)
        return size, tuple(
            Slice(FIRST_BIT + number * each, size.shard_bits, num_hashes, rate, items, room)
            for number in range(ring)
        )


def check_window(window: Window | timedelta | float) -> Ring:
    asked = window if isinstance(window, Window) else Window(window)
    length, count = asked.length, USUAL_SLICES if asked.slices is None else asked.slices
    allowed = f"from {MIN_SLICES} to {MAX_SLICES} or None"
    count = check_whole("slices", count, MIN_SLICES, MAX_SLICES, allowed)
    length_us = 0
    if isinstance(length, timedelta):
        length_us = length // timedelta(microseconds=1)
    elif isinstance(length, Real) and not isinstance(length, bool) and math.isfinite(length):
        length_us = round(float(length) * 10**6)
    if not MIN_SLICE_US * count <= length_us <= MAX_WINDOW_US:
        raise ConfigurationError(
            f"window must be a timedelta or seconds, at least {MIN_SLICE_US * count / 10**6:g} s "
            f"with {count} slices and at most 3650 days, not {length!r:.80}"
        )
    return Ring(length_us, count)


# -- growth --------------------------------------------------------------------------------------

GROWTH = 4
"""Of factors 2, 4 and 8 a guess that is 64 times too small takes 7, 4 and 3 slices."""

MIN_GROWTH, MAX_GROWTH = 2, 64
MOST_SLICES = 16

TIGHTENING = 0.5
"""r: by which factor the rate of a slice is below that of the one before."""

USUAL_STRING_BITS = 2**29
"""64 MiB: a shard with all its slices. To make a string longer takes the server up to a millisecond
for each MiB."""

USUAL_REACH = 256
"""By which factor a filter without `up_to` may pass its capacity at least, if that is possible with
MANY_SHARDS."""
MANY_SHARDS = 1024

MAX_STRING_BITS = 2**32


@dataclass(frozen=True, slots=True)
class Growth:
    """How a filter grows.

    Attributes:
        factor: By which a slice is for more items than the one before.
        up_to: Items that the filter can hold at most; None: as many as fit in its strings.
    """

    factor: int = GROWTH
    up_to: int | None = None


def check_growth(growth: Growth, capacity: int) -> Growth:
    factor = check_whole("growth", growth.factor, MIN_GROWTH, MAX_GROWTH)
    if growth.up_to is None:
        return Growth(factor)
    allowed = f"of items from the capacity, {capacity}, to {MAX_CAPACITY}, or None"
    return Growth(factor, check_whole("up_to", growth.up_to, capacity, MAX_CAPACITY, allowed))


def slice_error_rate(error_rate: float, index: int) -> float:
    """Return the rate of a slice: any number of slices keep the rate of the filter."""
    return float(error_rate * (1 - TIGHTENING) * TIGHTENING**index / RATE_TOLERANCE)


def _steps(
    capacity: int, error_rate: float, num_hashes: int, factor: int, up_to: int | None
) -> Iterator[tuple[int, float, int]]:
    """Yield items, rate and hash functions of the slices, the first one first."""
    held = 0
    more = math.log(TIGHTENING) / math.log(slice_error_rate(error_rate, 0))
    for index in range(MOST_SLICES):
        items = capacity * factor**index
        if up_to is not None:
            items = min(items, up_to - held)
        if items <= 0:
            return
        # Each slice is as full at its rate as the first one.
        hashes = min(MAX_HASHES, round(num_hashes * (1 + index * more)))
        yield items, slice_error_rate(error_rate, index), hashes
        held += items


def growing_slices(
    capacity: int, error_rate: float, num_hashes: int, shards: int | None, growth: Growth
) -> tuple[Size, tuple[Slice, ...]]:
    """Return the size of the first slice, and all slices that a filter can have."""
    shards = shards or _usual_shards(capacity, error_rate, num_hashes, growth)
    found: list[Slice] = []
    first, up_to = FIRST_BIT, growth.up_to
    for items, rate, k in _steps(capacity, error_rate, num_hashes, growth.factor, up_to):
        room = _room(items, shards)
        try:
            size = sizing.size_for(room, rate, num_hashes=k, shards=shards)
        except ConfigurationError:
            break
        if first + size.shard_bits > MAX_STRING_BITS:
            break
        room = sizing.shard_capacity(room, shards)
        found.append(Slice(first, size.shard_bits, k, rate, items, room))
        first = 8 * found[-1].end_byte
    if not found:
        bits = sizing.bits_needed(capacity, slice_error_rate(error_rate, 0), num_hashes)
        raise sizing.too_large(capacity, error_rate, bits, shards)
    held = sum(part.capacity for part in found)
    if up_to is not None and held < up_to:
        raise ConfigurationError(
            f"up_to must be at most {held} for capacity {capacity} at error_rate {error_rate:g} in "
            f"{shards} shards with growth {growth.factor}, not {up_to}; give a larger capacity or "
            "more shards"
        )
    return Size(found[0].bits, num_hashes, shards), tuple(found)


def _usual_shards(capacity: int, error_rate: float, num_hashes: int, growth: Growth) -> int:
    rate = slice_error_rate(error_rate, 0)
    shards = sizing.size_for(capacity, rate, num_hashes=num_hashes).shards
    most = growth.up_to or USUAL_REACH * capacity
    bits = sum(
        sizing.bits_needed(_room(items, shards), rate, hashes)
        for items, rate, hashes in _steps(capacity, error_rate, num_hashes, growth.factor, most)
    )
    limit = MAX_SHARDS if growth.up_to else MANY_SHARDS
    return max(shards, min(limit, math.ceil(bits / USUAL_STRING_BITS)))


def _room(items: int, shards: int) -> int:
    # The number of items is estimated from set bits, and clients look at it now and then. So a
    # slice has room for more than the items at which the next one is added, and these are more
    # than it is for by what chance may do.
    return math.ceil((items + 3 * math.sqrt(items * shards)) * LAG / (LAG - 1))


def compound_error_rate(rates: list[float]) -> float:
    """Return the rate of several slices together: 1 - (1 - a)(1 - b)..."""
    return -math.expm1(sum(math.log1p(-min(rate, 1 - 2**-53)) for rate in rates))
