"""Filters of thousands of shards: every item has its place, and every shard is looked after."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bloomlock import BloomFilter
from bloomlock.errors import FilterLostError
from bloomlock.hashing import encode_item
from bloomlock.sizing import FIRST_BIT
from bloomlock.spec import RequestedSpec

ITEMS = [f"https://example.org/{number}" for number in range(4000)]


@pytest.mark.parametrize("capacity", [41 * 10**9, 3 * 10**11])
def test_items_spread_over_a_filter_of_billions(capacity, seed):
    """The addressing at the size of the web, of which nothing is allocated."""
    size = RequestedSpec.check(capacity, 1e-6).describe().size
    hasher = RequestedSpec.check(capacity, 1e-6).describe().hasher()
    items = [encode_item(str(number)) for number in range(100_000)]
    offsets = hasher.rows(items)
    assert size.shards == 4096
    found = hasher.by_shard(items)
    counts = np.array([len(found.get(shard, ())) for shard in range(size.shards)])
    # Chi-square of 4095 degrees of freedom: mean 4095, deviation 90.
    expected = len(items) / size.shards
    assert ((counts - expected) ** 2 / expected).sum() < 4095 + 6 * 90
    assert offsets.max() < size.shard_bits + FIRST_BIT
    # A million places of which any lies in the last part of a shard.
    assert offsets.max() > 0.998 * size.shard_bits
    for index in random.Random(seed).sample(range(len(items)), 100):
        shard, row = hasher.locate(items[index])
        assert index in found[shard]
        assert row == offsets[index].tolist()


def test_a_thousand_shards_answer_like_one(r):
    made = BloomFilter("x", 10_000, client=r, shards=1100)
    assert made.add_many(ITEMS[:2000]) == [True] * 2000
    other = BloomFilter("x", 10_000, client=r)
    assert other.info().shards == 1100
    assert other.add_many(ITEMS) == [False] * 2000 + [True] * 2000
    assert all(made.exists_many(ITEMS))
    assert made.add(ITEMS[0]) is False
    assert made.add("another") is True
    made.update(ITEMS, route="bitmap")
    assert abs(made.count() - 4001) < 100
    other.clear()
    with pytest.raises(FilterLostError):
        made.add("another")
    made.reattach()
    assert not any(made.exists_many(ITEMS))
    assert made.delete()
    assert r.dbsize() == 0
