"""The Bloom filters that a server has itself (BF.*): their size. Pure.

The server hashes the items and decides how many bits they get. What is computed here is what
RedisBloom does: a filter that can grow is made for half of the error rate, because each part that
it grows by is made for half the rate of the part before, and all of them together must keep it
(P. S. Almeida et al., "Scalable Bloom Filters", Information Processing Letters 101(6), 2007).
https://redis.io/docs/latest/develop/data-types/probabilistic/bloom-filter/
"""

from __future__ import annotations

import math

from .errors import ConfigurationError
from .sizing import MAX_SHARDS, Size, shard_capacity

MAX_ITEMS = 2**30
"""Items that one key may be made for."""

EXPANSION = 2
"""A full filter grows by a part that holds this many times as many items as the last."""


def size_for(capacity: int, error_rate: float, shards: int | None = None) -> Size:
    """Return the size of a filter in as few keys as may hold the items, or in `shards`.

    >>> size_for(1_000_000, 1e-6), size_for(2**31, 1e-6).shards
    (Size(shard_bits=30197871, num_hashes=21, shards=1), 3)
    """
    bits_per_item = -math.log(error_rate / 2) / math.log(2) ** 2
    for count in range(1, MAX_SHARDS + 1) if shards is None else (shards,):
        items = shard_capacity(capacity, count)
        if items <= MAX_ITEMS:
            hashes = math.ceil(math.log(2) * bits_per_item)
            return Size(math.ceil(items * bits_per_item), hashes, count)
    raise ConfigurationError(
        f"capacity is {capacity}: with strategy='native' one shard may hold 2^30 items, and "
        f"{shards or MAX_SHARDS} of them not as many"
    )
