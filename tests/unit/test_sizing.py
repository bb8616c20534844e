"""Sizing against the formulas, published numbers and counts: a filter keeps its error rate."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rates import expected_error_rate, rate_of

from bloomlock import MemoryBloomFilter
from bloomlock.compiled import core
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import Hasher
from bloomlock.sizing import (
    FIRST_BYTE,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    RATE_TOLERANCE,
    Optimize,
    Size,
    best_num_hashes,
    bits_needed,
    error_rate_at_fill,
    estimate_count,
    estimate_deviation,
    native_size_for,
    shard_capacity,
    size_for,
    whole_collisions,
)
from bloomlock.spec import RequestedSpec
from bloomlock.strategies.bitmap import rows_missing, set_rows

needs_core = pytest.mark.skipif(core is None, reason="digests without items are placed in C alone")
FEWEST = {"usual_bits": MAX_SHARD_BITS}

MOVES = range(-4, 5)
TINY = [(1, 1e-15), (112, 1e-15), (3_000, 1e-15), (140, 1e-12), (168, 1e-10), (186, 1e-9)]


@given(
    st.integers(1, 3_000) | st.integers(1, 10**9),
    st.floats(-15, math.log10(0.5)),
    st.sampled_from([None, 1, 3, 50]),
    st.sampled_from([None, *get_args(Optimize)]),
)
def test_the_rate_is_kept_at_capacity_and_fewer_bits_would_break_it(
    capacity, exponent, shards, word
):
    rate = 10**exponent
    num_hashes = best_num_hashes(rate, word) if word else None
    try:
        size = size_for(capacity, rate, num_hashes=num_hashes, shards=shards, **FEWEST)
    except ConfigurationError as refused:
        assert "shards hold" in str(refused)
        return
    items = shard_capacity(capacity, size.shards)
    asked = (items, size.shard_bits, size.num_hashes)
    assert rate_of(*asked) <= RATE_TOLERANCE * rate * (1 + 1e-9)
    needed = bits_needed(items, rate, size.num_hashes)
    assert needed <= size.shard_bits
    if needed > 10_000:
        fewer = expected_error_rate(items, needed - 2, size.num_hashes)
        assert fewer > rate * (1 - 1e-9)
    if size.shard_bits > max(needed, 8192):
        fewer = (items, size.shard_bits // 8, size.num_hashes)
        assert rate_of(*fewer) > RATE_TOLERANCE * rate


def test_textbook_numbers():
    assert [best_num_hashes(1e-6, word) for word in get_args(Optimize)] == [16, 7, 5]
    assert size_for(1_000_000, 0.01) == Size(12_364_167, 3, 1)
    assert native_size_for(1_000_000, 1e-6) == Size(30_197_871, 21, 1)
    # 9.585 bits an item at 1 % with the real-valued optimum, 9.593 with its k rounded to 7.
    assert bits_needed(1_000_000, 0.01, 7) == 9_592_955
    assert best_num_hashes(0.01, "memory") == 6
    assert bits_needed(1_000_000, 0.01, 6) / 1_000_000 == pytest.approx(9.617, abs=0.001)
    assert expected_error_rate(1_000_000, 9_592_955, 7) == pytest.approx(0.01, rel=1e-6)


@given(st.floats(1e-15, 0.999))
def test_a_word_costs_what_it_says(error_rate):
    memory, balanced, speed = (best_num_hashes(error_rate, word) for word in get_args(Optimize))
    assert 1 <= speed <= balanced <= memory <= 64
    least = -(10**9) * math.log2(error_rate) / math.log(2)
    ideal = max(1, math.ceil(-math.log2(error_rate)))
    assert bits_needed(10**9, error_rate, memory) <= 1.02 * least or memory == ideal
    assert bits_needed(10**9, error_rate, speed) <= 3 * least or speed == 1
    products = {k: bits_needed(10**9, error_rate, k) * (k + 5) for k in range(1, 65)}
    assert products[balanced] <= 1.1 * min(products.values())
    assert all(products[k] > 1.1 * min(products.values()) for k in range(1, balanced))


# -- shards --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", range(3, 11))
def test_a_filter_takes_shards_of_a_few_mebibytes_by_itself(exponent):
    whole = RequestedSpec.check(10**exponent, 1e-6).describe().size
    least = size_for(10**exponent, 1e-6, **FEWEST)
    assert least.shards <= whole.shards <= MAX_SHARDS
    # Answers come with a bitmap of up to 8 MiB, and more shards cost hardly any memory.
    assert whole.shard_bits < 8 * 2**23 or whole.shards == MAX_SHARDS
    assert whole.shards == 1 or whole.num_bits < 1.005 * least.num_bits
    assert whole.shards == 1 or whole.num_bits > (whole.shards - 1) * 6 * 2**23
    assert RequestedSpec.check(10**exponent, 1e-6, shards=least.shards).describe().size == least


def test_no_shard_gets_more_items_than_it_is_sized_for():
    hasher = Hasher(2**20, 3, 50)
    found = hasher.by_shard(hasher.digests([b"%d" % number for number in range(100_000)]))
    assert max(map(len, found.values())) <= shard_capacity(100_000, 50)


# -- counts and estimates ------------------------------------------------------------------------


@given(st.integers(1, 100_000), st.integers(1, 30))
def test_the_count_is_recovered_from_the_expected_bits(count, num_hashes):
    num_bits = 4_000_000
    bits_set = num_bits * -math.expm1(-num_hashes * count / num_bits)
    assert estimate_count(bits_set, num_bits, num_hashes) == pytest.approx(count, rel=1e-6)


def test_a_full_bitmap_has_a_finite_count_and_rate_one():
    assert math.isfinite(estimate_count(1000, 1000, 3))
    assert error_rate_at_fill(1.0, 5) == 1.0


@pytest.mark.parametrize("sampled", [1_000, 20_000])
def test_estimates_from_a_sample_deviate_as_said(sampled):
    items, bits, hashes = 2_000, 20_000, 7
    rng = np.random.default_rng(7)
    found = []
    for _ in range(300):
        bitmap = np.zeros(bits, np.bool_)
        bitmap[rng.integers(0, bits, items * hashes)] = True
        found.append(estimate_count(bitmap[:sampled].mean() * bits, bits, hashes))
    deviation = estimate_deviation(items, bits, hashes, sampled)
    assert np.std(found) == pytest.approx(deviation, rel=0.2)
    assert np.mean(found) == pytest.approx(items, abs=5 * deviation / math.sqrt(300) + 2)


# -- small filters, where one item may have all offsets of another -------------------------------


def digests(x, y, z, bits):
    """The digests whose sequence of offsets is x + i y + C(i,2) z + C(i+1,3) mod m."""
    return np.stack([x, z * np.uint64(bits) + y], axis=1).astype(np.uint64)


def moved(sequences, bits, places):
    """The sequences whose offset i is offset i + places of these."""

    def at(i):
        x, y, z = (sequences[:, column].astype(object) for column in range(3))
        return x + i * y + i * (i - 1) // 2 * z + (i + 1) * i * (i - 1) // 6

    first, second, third = (at(places + i) for i in range(3))
    columns = (first % bits, (second - first) % bits, (third - 2 * second + first - 1) % bits)
    return [column.astype(np.uint64) for column in columns]


def filled(hasher, sequences):
    image = np.zeros(FIRST_BYTE + (hasher.shard_bits + 7) // 8, np.uint8)
    set_rows(image, hasher.place(digests(*sequences.T, hasher.shard_bits)))
    return image


def fill_of(image, bits):
    return float(np.unpackbits(image).sum()) / bits


@needs_core
@pytest.mark.parametrize(("capacity", "error_rate"), TINY)
def test_sequences_that_certainly_collide_are_few_enough(capacity, error_rate):
    size = size_for(capacity, error_rate, **FEWEST)
    bits, chance = size.shard_bits, np.random.default_rng(7)
    hasher = Hasher(bits, size.num_hashes)
    sequences = chance.integers(0, bits, (capacity, 3)).astype(np.uint64)
    image = filled(hasher, sequences)
    certain = sum(
        (~rows_missing(image, hasher.place(digests(*moved(sequences, bits, s), bits)))).sum()
        for s in MOVES
    )
    assert certain >= capacity
    assert certain / bits**3 <= error_rate
    assert certain / bits**3 <= whole_collisions(fill_of(image, bits), bits, size.num_hashes)


def test_the_current_rate_counts_whole_collisions():
    made = MemoryBloomFilter(100_000, 1e-15)
    assert made.info().current_error_rate == 0
    made.update(map(str, range(1_000)))
    least = 1_000 / made.num_bits**3
    assert least < made.info().current_error_rate < 5 * least
    seeded = MemoryBloomFilter(1_000, 1e-15, seeds=range(40))
    seeded.add("a")
    info = seeded.info()
    assert info.current_error_rate == error_rate_at_fill(info.fill_ratio, 40)
