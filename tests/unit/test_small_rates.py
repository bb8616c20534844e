"""The rate of small filters, where one item may have all offsets of another: counted exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock import FilterMismatchError, MemoryBloomFilter
from bloomlock.bitmaps import rows_missing, set_rows
from bloomlock.descriptor import READY
from bloomlock.hashing import Hasher
from bloomlock.parameters import Wanted
from bloomlock.sizing import (
    MIN_SHARD_BITS,
    RATE_TOLERANCE,
    Optimize,
    best_num_hashes,
    error_rate_at_fill,
    expected_error_rate,
    shard_capacity,
    size_for,
    small_filter_rate,
    whole_collisions,
)
from bloomlock.stored_descriptor import FIELDS, decode, encode

MOVES = range(-4, 5)
TINY = [(1, 1e-15), (112, 1e-15), (3_000, 1e-15), (140, 1e-12), (168, 1e-10), (186, 1e-9)]


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
    image = np.zeros(8 + (hasher.shard_bits + 7) // 8, np.uint8)
    set_rows(image, hasher.place(digests(*sequences.T, hasher.shard_bits))[1])
    return image


def fill_of(image, bits):
    return float(np.unpackbits(image).sum()) / bits


@pytest.mark.parametrize(("bits", "hashes", "items"), [(89, 18, 2), (96, 20, 2)])
def test_all_sequences_of_a_very_small_bitmap_are_counted(bits, hashes, items):
    hasher = Hasher(bits, hashes)
    chance = np.random.default_rng(5)
    counted = formula = bound = 0.0
    for _ in range(4):
        image = filled(hasher, chance.integers(0, bits, (items, 3)).astype(np.uint64))
        y, z = (part.ravel().astype(np.uint64) for part in np.mgrid[:bits, :bits])
        for x in range(bits):
            rows = hasher.place(digests(np.full_like(y, x), y, z, bits))[1]
            counted += (~rows_missing(image, rows)).sum() / bits**3
        fill = fill_of(image, bits)
        formula += error_rate_at_fill(fill, hashes)
        bound += whole_collisions(fill, bits, hashes)
    print(counted, formula, bound)
    assert counted > 5 * formula
    assert bound / 4 < counted - formula < bound


@pytest.mark.parametrize(("capacity", "error_rate"), TINY)
def test_sequences_that_certainly_collide_are_few_enough(capacity, error_rate):
    size = size_for(capacity, error_rate)
    bits, chance = size.shard_bits, np.random.default_rng(7)
    hasher = Hasher(bits, size.num_hashes)
    sequences = chance.integers(0, bits, (capacity, 3)).astype(np.uint64)
    image = filled(hasher, sequences)
    certain = sum(
        (~rows_missing(image, hasher.place(digests(*moved(sequences, bits, s), bits))[1])).sum()
        for s in MOVES
    )
    assert certain >= capacity
    assert certain / bits**3 <= error_rate
    assert certain / bits**3 <= whole_collisions(fill_of(image, bits), bits, size.num_hashes)


@given(
    st.integers(1, 3_000) | st.integers(1, 10**7),
    st.floats(-15, -1),
    st.sampled_from([None, 1, 3, 50]),
    st.sampled_from([None, *get_args(Optimize)]),
)
def test_the_rate_with_all_that_the_formula_leaves_out_is_kept(capacity, exponent, shards, word):
    rate = 10**exponent
    num_hashes = best_num_hashes(rate, word) if word else None
    size = size_for(capacity, rate, num_hashes=num_hashes, shards=shards)
    items = shard_capacity(capacity, size.shards)
    asked = (items, size.shard_bits, size.num_hashes)
    assert expected_error_rate(*asked) <= small_filter_rate(*asked, seeded=False)
    assert small_filter_rate(*asked, seeded=False) <= RATE_TOLERANCE * rate * (1 + 1e-9)
    before = size_for(capacity, rate, num_hashes=num_hashes, shards=shards, by_formula=True)
    assert before.shard_bits <= size.shard_bits
    assert (before.num_hashes, before.shards) == (size.num_hashes, size.shards)
    if before != size:
        fewer = (items, size.shard_bits - 1, size.num_hashes)
        assert small_filter_rate(*fewer, seeded=False) > RATE_TOLERANCE * rate


@pytest.mark.parametrize("capacity", [1, 190, 10_000, 1_000_000])
def test_usual_filters_have_the_size_of_the_formula(capacity):
    for rate in (0.1, 0.01, 1e-4, 1e-6, 1e-7):
        k = best_num_hashes(rate, "memory")
        size = size_for(capacity, rate, num_hashes=k)
        assert size == size_for(capacity, rate, num_hashes=k, by_formula=True)
    assert size_for(capacity, 1e-15, num_hashes=50, seeded=True).shard_bits < 1.01 * max(
        MIN_SHARD_BITS, size_for(capacity, 1e-15, num_hashes=50, by_formula=True).shard_bits
    )


@pytest.mark.parametrize(("capacity", "error_rate"), TINY)
def test_a_filter_of_an_earlier_size_is_read(capacity, error_rate):
    wanted = Wanted.check(capacity, error_rate, optimize="memory")
    asked = replace(wanted.describe().with_generation(7, READY), format=1)
    num_hashes = asked.size.num_hashes
    earlier = replace(
        asked, size=size_for(capacity, error_rate, num_hashes=num_hashes, by_formula=True)
    )
    assert earlier != asked
    fields = encode(earlier)
    read = decode("x", [fields[name].encode() if name in fields else None for name in FIELDS])
    assert read == earlier
    assert not Wanted.check(capacity, error_rate).differences(earlier)
    fields["shard_bits"] = str(earlier.size.shard_bits + 1)
    with pytest.raises(FilterMismatchError, match="shard_bits"):
        decode("x", [fields[name].encode() if name in fields else None for name in FIELDS])


def test_the_current_rate_counts_whole_collisions():
    made = MemoryBloomFilter(100_000, 1e-15)
    assert made.current_error_rate == 0
    made.update(map(str, range(1_000)))
    least = 1_000 / made.num_bits**3
    assert least < made.current_error_rate < 5 * least
    assert made.info().current_error_rate == made.current_error_rate
    seeded = MemoryBloomFilter(1_000, 1e-15, seeds=range(40))
    seeded.add("a")
    assert seeded.current_error_rate == error_rate_at_fill(seeded.fill_ratio, 40)
