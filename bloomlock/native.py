"""The size and the rates of the Bloom filters that a server has itself (BF.*). Pure arithmetic.

The server hashes the items and decides how many bits they get. What is computed here is what
RedisBloom does: a filter that can grow is made for half of the error rate, because each part that
it grows by is made for half the rate of the part before, and all of them together must keep it
(P. S. Almeida et al., "Scalable Bloom Filters", Information Processing Letters 101(6), 2007).
https://redis.io/docs/latest/develop/data-types/probabilistic/bloom-filter/
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from mmh3 import mmh3_x64_128_digest, mmh3_x64_128_utupledigest

from .arrays import np
from .errors import ConfigurationError
from .hashing import DEFAULT_SEED, Hasher, halves
from .sizing import (
    BALANCED,
    MAX_SHARDS,
    Optimize,
    Size,
    error_rate_at_fill,
    estimate_count,
    estimate_deviation,
    expected_error_rate,
    shard_capacity,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .hashing import Located, Words

MAX_ITEMS = 2**30
"""Items that one key may be made for."""

EXPANSION = 2
"""A full filter grows by a part that holds this many times as many items as the last."""


def bits_per_item(error_rate: float) -> float:
    """Return how many bits the server takes for an item.

    >>> round(bits_per_item(1e-6), 2)
    30.2
    """
    return -math.log(error_rate / 2) / math.log(2) ** 2


def best_num_hashes(error_rate: float, optimize: Optimize) -> int:  # noqa: ARG001 - the server decides
    """Return how many bits of an item the server sets, whatever it is to be optimized for.

    >>> best_num_hashes(1e-6, "balanced")
    21
    """
    return math.ceil(math.log(2) * bits_per_item(error_rate))


def size_for(
    capacity: int,
    error_rate: float,
    *,
    num_hashes: int | None = None,
    shards: int | None = None,
    seeded: bool = False,  # noqa: ARG001 - the server hashes
) -> Size:
    """Return the size of a filter that holds `capacity` items at `error_rate`.

    Args:
        capacity: Distinct items, n.
        error_rate: False-positive rate at that fill, p.
        num_hashes: Bits of an item; None: as many as the server sets.
        shards: Number of keys; None takes as few as may hold the items.
        seeded: Of no account.

    Raises:
        ConfigurationError: If the keys may not hold as many items.

    >>> size_for(1_000_000, 1e-6)
    Size(shard_bits=30197871, num_hashes=21, shards=1)
    >>> size_for(2**31, 1e-6).shards
    3
    """
    choices = range(1, MAX_SHARDS + 1) if shards is None else (shards,)
    for count in choices:
        items = shard_capacity(capacity, count)
        if items <= MAX_ITEMS:
            hashes = num_hashes or best_num_hashes(error_rate, BALANCED)
            return Size(math.ceil(items * bits_per_item(error_rate)), hashes, count)
    raise ConfigurationError(
        f"capacity is {capacity}: with strategy='native' one shard may hold 2^30 items, and "
        f"{shards or MAX_SHARDS} of them not as many"
    )


def usual_shards(size: Size) -> int:
    """Return how many keys a filter gets by itself: no bitmap is ever merged into one."""
    return size.shards


def rate_of(size: Size, error_rate: float, fill_ratio: float, *, seeded: bool) -> float:  # noqa: ARG001 - the server hashes
    """Return the rate at a fill; instead of filling up the server's filter grows."""
    return min(error_rate_at_fill(fill_ratio, size.num_hashes), error_rate)


class NativeHasher(Hasher):
    """What stands in for a hasher where the server hashes the items itself (BF.*).

    It decides on the shard, as any other, and a row is the item and not its offsets.
    """

    def __init__(self, shard_bits: int, num_hashes: int, shards: int = 1) -> None:
        super().__init__(shard_bits, num_hashes, shards)
        self.compiled = None

    def locate(self, data: bytes) -> tuple[int, list[int]]:
        """Return the shard and the item.

        >>> NativeHasher(1000, 7).locate(b"a")
        (0, b'a')
        """
        if self.shards == 1:
            return 0, cast("list[int]", data)
        h1, _ = mmh3_x64_128_utupledigest(data, DEFAULT_SEED)
        return (h1 * self.shards) >> 64, cast("list[int]", data)

    def locate_each(self, items: Sequence[bytes]) -> Located:
        """Return for each shard where its items stand, and the items."""
        if self.shards == 1:
            return {0: (range(len(items)), cast("Sequence[Sequence[int]]", items))}
        return super().locate_each(items)

    def digests(self, items: Sequence[bytes]) -> Words:
        """Return the items as an array of objects."""
        rows = np.empty(len(items), object)
        rows[:] = list(items)
        return cast("Words", rows)

    def place(self, digests: Words) -> tuple[Words, Words]:
        """Return the shards of many items, and the items."""
        if self.shards == 1:
            return np.zeros(len(digests), np.uint64), digests
        words = halves(mmh3_x64_128_digest(item) for item in digests.tolist())
        return self._shards_of(np.ascontiguousarray(words[:, 0])), digests


__all__ = [
    "NativeHasher",
    "best_num_hashes",
    "estimate_count",
    "estimate_deviation",
    "expected_error_rate",
    "rate_of",
    "size_for",
    "usual_shards",
]
