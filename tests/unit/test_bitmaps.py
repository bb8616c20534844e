"""Bits of many items at once agree with the plainest way to set and test them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock.bitmaps import BITS_PER_SLICE, first_of_each, rows_missing, set_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_BYTES = 40
rows_of_bits = st.integers(1, 5).flatmap(
    lambda k: st.lists(
        st.lists(st.integers(64, NUM_BYTES * 8 - 1), min_size=k, max_size=k), min_size=1
    )
)


def one_by_one(bits: NDArray[np.uint8], rows: NDArray[np.uint64]) -> None:
    for number in rows.reshape(-1).tolist():
        bits[number >> 3] |= 128 >> (number & 7)


@given(rows_of_bits, st.sampled_from([np.uint32, np.uint64]), st.sampled_from("CF"))
def test_rows_are_set_and_found(rows, dtype, order):
    array = np.array(rows, dtype, order=order)
    bits, expected = np.zeros(NUM_BYTES, np.uint8), np.zeros(NUM_BYTES, np.uint8)
    one_by_one(expected, array)
    set_rows(bits, array)
    assert bits.tolist() == expected.tolist()
    assert not rows_missing(bits, array).any()
    is_set = np.unpackbits(bits)
    assert rows_missing(bits, array ^ dtype(1)).tolist() == [
        not all(is_set[number ^ 1] for number in row) for row in rows
    ]


@pytest.mark.parametrize("distinct", [1, 10_000, 2**62])
def test_batches_longer_than_a_slice(distinct):
    rng = np.random.default_rng(distinct)
    items = rng.integers(0, distinct, BITS_PER_SLICE // 8 * 3 + 5)
    kinds, inverse = np.unique(items, return_inverse=True)
    rows = rng.integers(64, 2**23, (len(kinds), 8), dtype=np.uint64)[inverse]
    bits, expected = np.zeros(2**20, np.uint8), np.zeros(2**20, np.uint8)
    one_by_one(expected, rows)
    set_rows(bits, rows)
    assert np.array_equal(bits, expected)
    assert not rows_missing(bits, rows).any()
    first = np.zeros(len(items), bool)
    first[np.unique(items, return_index=True)[1]] = True
    assert np.array_equal(first_of_each(rows[:, :4]), first)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_repeats_are_told_by_all_words_also_where_all_meet_in_one_slot(pairs):
    # Multiples of 2^32 have the same low bits: every item has the same slot, round after round.
    digests = np.array(pairs, np.uint64).reshape(-1, 2) << np.uint64(32)
    assert first_of_each(digests).tolist() == [
        pair not in pairs[:place] for place, pair in enumerate(pairs)
    ]


def test_many_digests_in_one_slot_are_told_apart_in_bounded_time():
    items = np.arange(200_000, dtype=np.uint64) % np.uint64(150_000) << np.uint64(32)
    assert first_of_each(items[:, None]).tolist() == [True] * 150_000 + [False] * 50_000


def test_a_bit_beyond_the_bitmap_is_an_error():
    with pytest.raises(IndexError):
        set_rows(np.zeros(9, np.uint8), np.array([[72]], np.uint64))
