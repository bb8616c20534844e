"""scrapy-redis-bloomfilter: its own BloomFilter, asked as its own duplicates filter asks it."""

from __future__ import annotations

import math

from scrapy_redis_bloomfilter.bloomfilter import BloomFilter
from scrapy_redis_bloomfilter.defaults import BLOOMFILTER_HASH_NUMBER

from benchmarks.place import Place, connect

from . import base


class Contender(base.Contender):
    """One round trip for each of its 6 bits; `exists`, then `insert`."""

    def __init__(self, place: Place) -> None:
        """Connect; the bitmap is the smallest power of 2 that would hold the error rate."""
        hashes = BLOOMFILTER_HASH_NUMBER
        bits = -hashes * place.capacity / math.log1p(-(place.error_rate ** (1 / hashes)))
        exponent = math.ceil(math.log2(bits))
        self._client = connect(place.url)
        self._key = place.key
        self._filter = BloomFilter(self._client, place.key, bit=exponent)

    def add(self, item: str) -> bool:
        """See base."""
        if self._filter.exists(item):
            return False
        self._filter.insert(item)
        return True

    def exists(self, item: str) -> bool:
        """See base."""
        return bool(self._filter.exists(item))

    def clear(self) -> None:
        """See base."""
        self._client.delete(self._key)
