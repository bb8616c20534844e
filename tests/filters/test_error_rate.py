"""Measured false-positive rates lie where the formula puts them."""

from __future__ import annotations

import math

import pytest
import redis

from bloomlock import BloomFilter

CASES = [
    (1_000, 0.1, None, 1),
    (1_000, 0.01, None, 1),
    (20_000, 0.01, None, 1),
    (20_000, 0.01, None, 5),
    (20_000, 0.001, None, 1),
    (5_000, 0.001, (1, 2, 3, 4, 5, 6), 1),
    (20_000, 0.01, (0, 1, 2, 3), 3),
    (20_000, 0.01, (11, 2**32 - 1, 77), 1),
]


@pytest.mark.parametrize(("capacity", "error_rate", "seeds", "shards"), CASES)
def test_the_rate_at_capacity_is_the_one_asked_for(valkey, capacity, error_rate, seeds, shards):
    client = redis.Redis.from_url(valkey)
    client.flushall()
    made = BloomFilter("p", capacity, error_rate, client=client, seeds=seeds, shards=shards)
    made.update(f"in {number}" for number in range(capacity))
    probes = 100_000
    false = sum(made.exists_many(f"out {number}" for number in range(probes)))
    # What the bitmap is sized for; the smallest bitmap and the margin for shards are larger.
    expected = made.info().current_error_rate
    assert expected <= error_rate * 1.1
    deviation = math.sqrt(probes * expected * (1 - expected))
    assert abs(false - probes * expected) < 4.5 * deviation


def test_a_small_filter_with_a_tiny_rate_keeps_it(valkey):
    # Plain double hashing has m^2 sequences: at m = 8192 an item of 190 collides whole once in
    # 350,000 probes, a thousand times the rate asked for. Ten million probes would be needed to see
    # less; the sequences themselves can be counted.
    client = redis.Redis.from_url(valkey)
    client.flushall()
    hasher = BloomFilter("p", 190, 1e-9, client=client)._state.view.hasher
    items = [b"%d" % number for number in range(300_000)]
    rows = hasher.rows(items).tolist()
    assert len({tuple(row[:2]) for row in rows}) < 300_000
    assert len({tuple(row) for row in rows}) == 300_000
