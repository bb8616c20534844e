"""Sizing against the formulas and against published numbers."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock import ConfigurationError
from bloomlock.descriptor import LAYOUTS
from bloomlock.hashing import Hasher
from bloomlock.parameters import Wanted
from bloomlock.sizing import (
    HEADER_BITS,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    Optimize,
    Size,
    best_num_hashes,
    bits_needed,
    error_rate_at_fill,
    estimate_count,
    estimate_deviation,
    expected_error_rate,
    shard_capacity,
    size_for,
)

capacities = st.integers(1, 10**9)
error_rates = st.floats(1e-12, 0.5)


@given(capacities, error_rates)
def test_the_rate_is_kept_at_capacity_and_one_bit_less_would_break_it(capacity, error_rate):
    size = size_for(capacity, error_rate, shards=None)
    per_shard = shard_capacity(capacity, size.shards)
    rate = expected_error_rate(per_shard, size.shard_bits, size.num_hashes)
    assert rate <= error_rate * (1 + 1e-6)
    needed = bits_needed(per_shard, error_rate, size.num_hashes)
    if needed > 10_000:
        assert expected_error_rate(per_shard, needed - 2, size.num_hashes) > error_rate * (1 - 1e-9)


@given(capacities, error_rates)
def test_bits_stay_within_two_percent_of_the_optimum(capacity, error_rate):
    optimum = -capacity * math.log2(error_rate) / math.log(2)
    needed = bits_needed(capacity, error_rate, best_num_hashes(error_rate, "memory"))
    ideal = bits_needed(capacity, error_rate, max(1, math.ceil(-math.log2(error_rate))))
    assert needed <= max(1.02 * optimum, ideal) + 1


def test_textbook_numbers():
    # 9.585 bits an item at 1 % with the real-valued optimum, 9.593 with its k rounded to 7.
    assert bits_needed(1_000_000, 0.01, 7) == 9_592_955
    assert best_num_hashes(0.01, "memory") == 6
    assert bits_needed(1_000_000, 0.01, 6) / 1_000_000 == pytest.approx(9.617, abs=0.001)
    assert expected_error_rate(1_000_000, 9_592_955, 7) == pytest.approx(0.01, rel=1e-6)


def test_large_filters_take_as_many_shards_as_they_need():
    assert size_for(140_000_000, 1e-6, num_hashes=16).shards == 1
    size = size_for(1_000_000_000, 1e-6, num_hashes=16)
    assert size.shards == 7
    assert HEADER_BITS + size.shard_bits <= 2**32


@pytest.mark.parametrize("layout", ["classic", "blocked"])
@pytest.mark.parametrize("exponent", range(3, 11))
def test_a_filter_takes_shards_of_a_few_mebibytes_by_itself(layout, exponent):
    whole = Wanted.check(10**exponent, 1e-6, shards=None, layout=layout).describe().size
    least = LAYOUTS[layout].size_for(10**exponent, 1e-6)
    assert least.shards <= whole.shards <= MAX_SHARDS
    # Answers come with a bitmap of up to 8 MiB, and more shards cost hardly any memory.
    assert whole.shard_bits < 8 * 2**23 or whole.shards == MAX_SHARDS
    assert whole.shards == 1 or whole.num_bits < 1.005 * least.num_bits
    assert whole.shards == 1 or whole.num_bits > (whole.shards - 1) * 6 * 2**23
    given_number = Wanted.check(10**exponent, 1e-6, shards=least.shards, layout=layout)
    assert given_number.describe().size == least


def test_the_largest_filter_has_2_to_the_44_bits():
    size = size_for(600_000_000_000, 1e-6, num_hashes=16)
    assert size.shards <= MAX_SHARDS
    assert size.num_bits > 0.99 * 2**44
    with pytest.raises(ConfigurationError, match=r"needs about 2\^45\.\d bits"):
        size_for(1_600_000_000_000, 1e-6, num_hashes=16)


def test_too_few_shards_are_refused():
    with pytest.raises(ConfigurationError, match="1 shards hold"):
        size_for(1_000_000_000, 1e-6, shards=1)


def test_given_hashes_cost_bits_and_not_the_rate():
    for num_hashes in (1, 3, 30):
        size = size_for(100_000, 0.001, num_hashes=num_hashes)
        assert size.num_hashes == num_hashes
        rate = expected_error_rate(100_000, size.num_bits, num_hashes)
        assert rate == pytest.approx(0.001, rel=1e-3)


@given(st.integers(1, 100_000), st.integers(1, 30))
def test_the_count_is_recovered_from_the_expected_bits(count, num_hashes):
    num_bits = 4_000_000
    bits_set = num_bits * -math.expm1(-num_hashes * count / num_bits)
    assert estimate_count(bits_set, num_bits, num_hashes) == pytest.approx(count, rel=1e-6)


def test_a_full_bitmap_has_a_finite_count_and_rate_one():
    assert math.isfinite(estimate_count(1000, 1000, 3))
    assert error_rate_at_fill(1.0, 5) == 1.0


def test_size_counts_all_shards():
    assert Size(100, 3, 4).num_bits == 400
    assert MAX_SHARD_BITS == 2**32 - 64


@pytest.mark.parametrize("sampled", [1_000, 10_000, 20_000])
def test_estimates_from_a_sample_deviate_as_said(sampled):
    items, bits, hashes = 2_000, 20_000, 7
    rng = np.random.default_rng(7)
    found = []
    for _ in range(300):
        bitmap = np.zeros(bits, np.bool_)
        bitmap[rng.integers(0, bits, items * hashes)] = True
        share = bitmap[:sampled].mean()
        found.append(estimate_count(share * bits, bits, hashes))
    deviation = estimate_deviation(items, bits, hashes, sampled)
    assert np.std(found) == pytest.approx(deviation, rel=0.2)
    assert np.mean(found) == pytest.approx(items, abs=5 * deviation / math.sqrt(300) + 2)


# Few hash functions: what the formula promises is counted on real bits of filters at capacity.
@pytest.mark.measures
@pytest.mark.parametrize(
    ("error_rate", "num_hashes", "capacity", "probes"),
    [
        (1e-2, 1, 2_000, 2),
        (1e-3, 2, 1_000, 4),
        (1e-3, 3, 20_000, 4),
        (1e-4, 3, 20_000, 10),
        (1e-5, 3, 3_000, 20),
        (1e-6, 5, 20_000, 60),
        (1e-6, 7, 100, 60),
    ],
)
def test_few_hash_functions_keep_the_rate(error_rate, num_hashes, capacity, probes):
    size = size_for(capacity, error_rate, num_hashes=num_hashes)
    random = np.random.default_rng(capacity)
    bits = np.zeros(HEADER_BITS + size.shard_bits, bool)
    hasher = Hasher(size.shard_bits, num_hashes)
    bits[hasher.place(random.integers(0, 2**64, (capacity, 2), dtype=np.uint64))[1]] = True
    fill = bits.sum() / size.shard_bits
    false = 0
    for _ in range(probes):
        digests = random.integers(0, 2**64, (1_000_000, 2), dtype=np.uint64)
        for step in sorted({1, min(3, num_hashes), num_hashes}):
            # The first offsets of an item are the same for any k, and leave few to look at.
            rows = Hasher(size.shard_bits, step).place(digests)[1]
            digests = digests[bits[rows].all(axis=1)]
        false += len(digests)
    drawn = probes * 1_000_000
    expected = drawn * error_rate_at_fill(fill, num_hashes)
    assert abs(false - expected) < 4.5 * math.sqrt(expected)
    # Of a few hundred set bits the number itself scatters.
    assert expected < 1.25 * drawn * error_rate


@given(st.floats(1e-15, 0.999))
def test_a_word_costs_what_it_says(error_rate):
    memory, balanced, speed = (best_num_hashes(error_rate, word) for word in get_args(Optimize))
    assert 1 <= speed <= balanced <= memory <= 64
    least = -(10**9) * math.log2(error_rate) / math.log(2)
    assert bits_needed(10**9, error_rate, speed) <= 3 * least or speed == 1
    products = {k: bits_needed(10**9, error_rate, k) * (k + 5) for k in range(1, 65)}
    assert products[balanced] <= 1.1 * min(products.values())
    assert all(products[k] > 1.1 * min(products.values()) for k in range(1, balanced))
