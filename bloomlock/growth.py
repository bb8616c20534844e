"""A filter that grows: its slices, each a bitmap of its own size behind those before. Pure.

With r = 1/2 slice j is sized for the rate p (1 - r) r^j. An item never added is taken for a seen
one if any slice says so, so with any number of slices that happens at most at the rate

    p (1 - r) (1 + r + r^2 + ...) = p

(P. S. Almeida, C. Baquero, N. Preguiça, D. Hutchison, "Scalable Bloom Filters", 2007). Slice j is
for capacity * factor^j items, so few slices are enough, and few are what makes `exists` quick.

The number of items is estimated from set bits, and clients look at it now and then. So a slice has
room for a sixteenth more than the items at which the next one is added, and these are more than it
is for by what chance may do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

from . import sizing
from .errors import ConfigurationError
from .sizing import FIRST_BIT, MAX_CAPACITY, MAX_HASHES, MAX_SHARDS, RATE_TOLERANCE, Size
from .slices import LAG, Slice

GROWTH = 4
"""Of factors 2, 4 and 8 a guess that is 64 times too small takes 7, 4 and 3 slices."""

MIN_GROWTH, MAX_GROWTH = 2, 64
MAX_SLICES = 16

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


def check_growth(growth: object, up_to: object, capacity: int) -> Growth:
    """Return how a filter grows, or raise ConfigurationError.

    Args:
        growth: The factor; None: 4.
        up_to: The most items; None: as many as fit.
        capacity: That of the first slice.

    >>> check_growth(None, 10**6, 1000)
    Growth(factor=4, up_to=1000000)
    """
    factor = GROWTH if growth is None else growth
    if (
        isinstance(factor, bool)
        or not isinstance(factor, Integral)
        or not MIN_GROWTH <= int(factor) <= MAX_GROWTH
    ):
        raise ConfigurationError(
            f"growth must be a whole number from {MIN_GROWTH} to {MAX_GROWTH} or None, "
            f"not {growth!r:.80}"
        )
    if up_to is None:
        return Growth(int(factor))
    if (
        isinstance(up_to, bool)
        or not isinstance(up_to, Integral)
        or not capacity <= int(up_to) <= MAX_CAPACITY
    ):
        raise ConfigurationError(
            f"up_to must be a whole number of items from the capacity, {capacity}, to "
            f"{MAX_CAPACITY}, or None, not {up_to!r:.80}"
        )
    return Growth(int(factor), int(up_to))


def slice_error_rate(error_rate: float, index: int) -> float:
    """Return the rate that a slice is sized for.

    Small slices may pass the rate that they are sized for by RATE_TOLERANCE, so that is left free.

    >>> sum(slice_error_rate(1e-6, j) for j in range(50)) * RATE_TOLERANCE <= 1e-6
    True
    """
    return float(error_rate * (1 - TIGHTENING) * TIGHTENING**index / RATE_TOLERANCE)


def slice_hashes(first: int, error_rate: float, index: int) -> int:
    """Return the hash functions of a slice, which is as full as the first one at its rate.

    Args:
        first: Those of the first slice.
        error_rate: That of the filter.
        index: The number of the slice.

    >>> [slice_hashes(17, 1e-6, j) for j in range(4)]
    [17, 18, 19, 19]
    """
    more = index * math.log(TIGHTENING) / math.log(slice_error_rate(error_rate, 0))
    return min(MAX_HASHES, round(first * (1 + more)))


def slices_for(
    capacity: int, error_rate: float, num_hashes: int, shards: int, growth: Growth
) -> tuple[Slice, ...]:
    """Return all slices that a filter can have, the first one first.

    Args:
        capacity: Items of the first slice, n.
        error_rate: Of the filter, p.
        num_hashes: Hash functions of the first slice.
        shards: Number of shards.
        growth: How it grows.

    Raises:
        ConfigurationError: If they do not hold `up_to` items, or not even the capacity.

    >>> [(s.bits, s.num_hashes, s.capacity) for s in slices_for(1000, 0.01, 6, 1, Growth(4, 9000))]
    [(13275, 6, 1000), (57091, 7, 4000), (63421, 8, 4000)]
    """
    found: list[Slice] = []
    first, held = FIRST_BIT, 0
    while len(found) < MAX_SLICES and (growth.up_to is None or held < growth.up_to):
        index = len(found)
        items = capacity * growth.factor**index
        if growth.up_to is not None:
            items = min(items, growth.up_to - held)
        size = _slice_size(items, error_rate, num_hashes, shards, index)
        if size is None or first + size.shard_bits > MAX_STRING_BITS:
            break
        rate, room = slice_error_rate(error_rate, index), _room_of_shard(items, shards)
        found.append(Slice(first, size.shard_bits, size.num_hashes, rate, items, room))
        first = 8 * found[-1].end_byte
        held += items
    if not found:
        bits = sizing.bits_needed(capacity, slice_error_rate(error_rate, 0), num_hashes)
        raise sizing.too_large(capacity, error_rate, bits, shards)
    if growth.up_to is not None and held < growth.up_to:
        raise ConfigurationError(
            f"up_to must be at most {held} for capacity {capacity} at error_rate {error_rate:g} in "
            f"{shards} shards with growth {growth.factor}, not {growth.up_to}; give a larger "
            f"capacity or more shards"
        )
    return tuple(found)


def shards_for(
    capacity: int, error_rate: float, num_hashes: int, shards: int, growth: Growth
) -> int:
    """Return how many shards a filter gets by itself, in which all its slices have room.

    Args:
        capacity: Items of the first slice.
        error_rate: Of the filter.
        num_hashes: Hash functions of the first slice.
        shards: How many the first slice alone would have.
        growth: How it grows.

    >>> shards_for(10**6, 1e-6, 7, 1, Growth(4, 64 * 10**6))
    8
    """
    most = growth.up_to or USUAL_REACH * capacity
    bits = held = 0
    for index in range(MAX_SLICES):
        items = min(capacity * growth.factor**index, most - held)
        if items <= 0:
            break
        rate, hashes = (
            slice_error_rate(error_rate, index),
            slice_hashes(num_hashes, error_rate, index),
        )
        bits += sizing.bits_needed(_room(items, shards), rate, hashes)
        held += items
    limit = MAX_SHARDS if growth.up_to else MANY_SHARDS
    return max(shards, min(limit, math.ceil(bits / USUAL_STRING_BITS)))


def _slice_size(
    items: int, error_rate: float, num_hashes: int, shards: int, index: int
) -> Size | None:
    """Return the size of a slice; None if it does not fit."""
    try:
        return sizing.size_for(
            _room(items, shards),
            slice_error_rate(error_rate, index),
            num_hashes=slice_hashes(num_hashes, error_rate, index),
            shards=shards,
        )
    except ConfigurationError:
        return None


def _room(items: int, shards: int) -> int:
    """Return for how many items a slice is sized, so that all of its own fit before it is full."""
    return math.ceil((items + 3 * math.sqrt(items * shards)) * LAG / (LAG - 1))


def _room_of_shard(items: int, shards: int) -> int:
    return sizing.shard_capacity(_room(items, shards), shards)


def compound_error_rate(rates: list[float]) -> float:
    """Return the rate of several slices together: 1 - (1 - a)(1 - b)...

    >>> round(compound_error_rate([0.1, 0.2]), 6)
    0.28
    """
    return -math.expm1(sum(math.log1p(-min(rate, 1 - 2**-53)) for rate in rates))
