"""The blocked layout: all k bits of an item in one block of 512 bits. Sizing and placing. Pure.

Sources:
    F. Putze, P. Sanders, J. Singler, "Cache-, hash- and space-efficient Bloom filters", WEA 2007:
    the rate is the mean over blocks, whose numbers of items are Poisson distributed, so a blocked
    filter needs more bits than a classic one, and the more the smaller the rate.
    M. Dietzfelbinger, T. Hagerup, J. Katajainen, M. Penttonen, "A reliable randomized algorithm
    for the closest-pair problem", Journal of Algorithms 25(1), 1997: multiply-shift hashing.

Placing. With h1, h2 the two halves of the item's digest (hashing.py), B blocks in a shard

    block      = h1 mod B
    position_i = ((h2 * salt_i + shift_i) mod 2^64) >> 55          for i = 0 .. k-1
    salt_i     = first half of the Murmur3 x64 128-bit digest (seed 0) of the decimal digits of i,
                 with its lowest bit set
    shift_i    = its second half; the digest of the empty item is 0, and without a shift all its
                 positions would be one

and the bit's place in the bitmap is 512 * block + position_i. Positions of one item may coincide.

Rate. An item misses j given bits of a given block with probability 1 - (1 - q_j)/B, where
q_j = (1 - j/512)^k, so with L = n/B items for a block on average they all stay clear with
probability exp(-L (1 - q_j)). By inclusion and exclusion over the d different bits of a new item

    rate(k, L) = sum over j of (-1)^j E[C(d, j)] exp(-L (1 - q_j))
    E[C(d, j)] = C(512, j) * sum over i of (-1)^i C(j, i) (1 - i/512)^k

which takes in the uneven numbers of items, the positions that coincide, and the limited room in a
block. With few blocks the number of items is binomial, and the rate a little lower.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from mmh3 import mmh3_x64_128_utupledigest

from . import sizing
from .arrays import np
from .errors import ConfigurationError
from .sizing import (
    BALANCED,
    MAX_HASHES,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    MEMORY,
    MEMORY_SLACK,
    MIN_SHARD_BITS,
    Optimize,
    Size,
    shard_capacity,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

BLOCK_BITS = 512
"""One line of the processor's cache."""

MIN_ERROR_RATE = 1e-9
"""Here a blocked filter is 1.7 times as large as a classic one, and ten times below 1.9 times; with
optimize="memory" 1.9 and 2.1 times."""

_DIGESTS = [mmh3_x64_128_utupledigest(b"%d" % i, 0) for i in range(MAX_HASHES)]
SALTS = tuple((first | 1, second) for first, second in _DIGESTS)
"""Multiplier and addend of each position."""

POSITION_SHIFT = 55
"""Leaves the nine highest bits of 64."""

_DIGITS = 50
"""Decimal digits: the sum alternates, and its terms are up to 2^k times its value."""


def places_in_blocks(digests: Words, num_blocks: int, num_hashes: int) -> Words:
    """Return the places in the bitmap of n items.

    Args:
        digests: An array of n rows: h1 and h2.
        num_blocks: Blocks of one shard, B.
        num_hashes: Positions of one item, k.

    Returns:
        An array of n rows of k bit numbers, the bitmap's first being 0.
    """
    # Column by column, as the classic offsets are. The products wrap at 2^64, as they should.
    salts = _salts()[:num_hashes]
    columns: Words = salts[:, :1] * digests[:, 1]
    columns += salts[:, 1:]
    columns >>= np.uint64(POSITION_SHIFT)
    columns += digests[:, 0] % np.uint64(num_blocks) * np.uint64(BLOCK_BITS)
    return columns.T


@cache
def _salts() -> Words:
    return np.array(SALTS, np.uint64)


def block_rate(num_hashes: int, items_per_block: float) -> float:
    """Return the false-positive rate of blocks that hold this many items on average.

    Cost: 0.2 milliseconds.

    >>> f"{block_rate(6, 51.6):.4f}"
    '0.0100'
    """
    if items_per_block <= 0:
        return 0.0
    with localcontext() as context:
        context.prec = _DIGITS
        items = Decimal(items_per_block)
        return max(0.0, float(sum(w * (-items * hit).exp() for w, hit in _terms(num_hashes))))


@cache
def _terms(num_hashes: int) -> list[tuple[Decimal, Decimal]]:
    """Return (-1)^j E[C(d, j)] and 1 - q_j for each j, from exact whole numbers."""
    whole = BLOCK_BITS**num_hashes
    with localcontext() as context:
        context.prec = _DIGITS
        terms = []
        for j in range(num_hashes + 1):
            ways = sum(
                (-1) ** i * math.comb(j, i) * (BLOCK_BITS - i) ** num_hashes for i in range(j + 1)
            )
            weight = Decimal((-1) ** j * math.comb(BLOCK_BITS, j) * ways) / whole
            terms.append((weight, Decimal(whole - (BLOCK_BITS - j) ** num_hashes) / whole))
    return terms


@lru_cache(maxsize=256)
def items_per_block(error_rate: float, num_hashes: int) -> float:
    """Return how many items a block may hold on average at that rate.

    Cost: up to 10 milliseconds, once for each rate and k.

    >>> round(items_per_block(1e-6, 14), 2)
    13.05
    """
    # A classic filter holds hardly fewer items than the blocked one, and not a thousand times more.
    high = 1.1e9 * BLOCK_BITS / sizing.bits_needed(10**9, error_rate, num_hashes)
    low = high / 1000
    while high / low > 1 + 1e-7:
        middle = math.sqrt(low * high)
        if block_rate(num_hashes, middle) <= error_rate:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=256)
def best_num_hashes(error_rate: float, optimize: Optimize = BALANCED) -> int:
    """Return the fewest hash functions that are good enough.

    For memory that is 1.8 % above the least bits. Otherwise it is the k of the classic layout,
    which the same rules would find here at 1e-3, 1e-6 and 1e-9.

    Cost: up to 0.1 seconds for memory, once for each rate.

    >>> [[best_num_hashes(p, word) for p in (0.01, 1e-6)] for word in ("memory", "balanced")]
    [[6, 14], [3, 7]]
    """
    if optimize != MEMORY:
        return sizing.best_num_hashes(error_rate, optimize)
    ideal = max(1, math.ceil(-math.log2(error_rate)))
    choices = {k: items_per_block(error_rate, k) for k in range(max(1, ideal // 2), ideal + 1)}
    enough = max(choices.values()) / MEMORY_SLACK
    return next(k for k, items in choices.items() if items >= enough)


def size_for(
    capacity: int,
    error_rate: float,
    *,
    num_hashes: int | None = None,
    shards: int | None = None,
    seeded: bool = False,  # noqa: ARG001 - of the classic layout
) -> Size:
    """Return the smallest blocked filter that holds `capacity` items at `error_rate`.

    Args, Raises: as `sizing.size_for`; also ConfigurationError below a rate of 1e-9.

    >>> size_for(1_000_000, 0.01)
    Size(shard_bits=12617728, num_hashes=3, shards=1)

    What it costs, as a multiple of the classic layout's memory at 1e-2, 1e-3, 1e-4, 1e-6 and 1e-9:

    >>> rates = 1e-2, 1e-3, 1e-4, 1e-6, 1e-9
    >>> [f"{size_for(10**6, p).num_bits / sizing.size_for(10**6, p).num_bits:.2f}" for p in rates]
    ['1.02', '1.05', '1.10', '1.27', '1.71']
    """
    if error_rate < MIN_ERROR_RATE:
        raise ConfigurationError(
            f"error_rate must be at least {MIN_ERROR_RATE:g} with layout='blocked', which would "
            f"need about twice the memory of layout='classic', not {error_rate!r}"
        )
    k = num_hashes or best_num_hashes(error_rate)
    items = items_per_block(error_rate, k)
    most = MAX_SHARD_BITS // BLOCK_BITS
    least = math.ceil(capacity / items / most)
    for count in range(least, MAX_SHARDS + 1) if shards is None else (shards,):
        blocks = math.ceil(shard_capacity(capacity, count) / items)
        if blocks <= most and count <= MAX_SHARDS:
            return Size(max(blocks * BLOCK_BITS, MIN_SHARD_BITS), k, count)
    raise sizing.too_large(capacity, error_rate, capacity / items * BLOCK_BITS, shards)


def expected_error_rate(count: float, num_bits: int, num_hashes: int) -> float:
    """Return the false-positive rate after `count` distinct items.

    >>> f"{expected_error_rate(1_000_000, 9_918_464, 6):.4f}"
    '0.0100'
    """
    return block_rate(num_hashes, count / (num_bits / BLOCK_BITS))


def error_rate_at_fill(fill_ratio: float, num_hashes: int) -> float:
    """Return the chance that an item never added finds all its bits set.

    Blocks differ in fill, so it is more than fill^k.

    >>> 0.45**6 < error_rate_at_fill(0.45, 6) < 0.01
    True
    """
    if fill_ratio >= 1:
        return 1.0
    return block_rate(num_hashes, -math.log1p(-fill_ratio) / _hit(num_hashes))


def estimate_count(bits_set: float, num_bits: int, num_hashes: int) -> float:
    """Return the number of distinct items from the number of set bits.

    A given bit is set by an item with probability h/B, h = 1 - (1 - 1/512)^k, whatever happens to
    its neighbours, so n = -(B/h) ln(1 - X/m): the classic estimate with 512 h for k.

    >>> round(estimate_count(4_485_000, 9_918_464, 6))
    999726
    """
    return sizing.estimate_count(bits_set, num_bits, BLOCK_BITS * _hit(num_hashes))


def estimate_deviation(capacity: float, num_bits: int, num_hashes: int, sampled_bits: int) -> float:
    """Return the standard deviation of `estimate_count` for a filter at its capacity.

    The set bits of a block with a Poisson number L of items have the variance

        V = 512 e_1 (1 - e_1) + 512 * 511 (e_2 - e_1^2),    e_j = exp(-L (1 - q_j))

    and those of s of all B blocks s (V - (512 e_1 h)^2 L s/B), because the blocks share n items.

    >>> round(estimate_deviation(1_000_000, 9_918_464, 6, 9_918_464))
    256
    """
    blocks, sampled = num_bits / BLOCK_BITS, sampled_bits / BLOCK_BITS
    items, hit = capacity / blocks, _hit(num_hashes)
    one, both = math.exp(-items * hit), math.exp(-items * _hit(num_hashes, 2))
    variance = BLOCK_BITS * one * (1 - one) + BLOCK_BITS * (BLOCK_BITS - 1) * (both - one**2)
    shared = (BLOCK_BITS * one * hit) ** 2 * items * sampled / blocks
    deviation = math.sqrt(sampled * max(variance - shared, 0.0)) / sampled_bits
    return blocks / hit / one * deviation


def _hit(num_hashes: int, bits: int = 1) -> float:
    """Return the chance that an item sets any of some given bits of its block, 1 - q_j."""
    return -math.expm1(num_hashes * math.log1p(-bits / BLOCK_BITS))
