"""Bits of many items at once agree with the plainest way to set and test them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock.bitmaps import BITS_PER_SLICE, rows_missing, set_rows

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


def test_a_bit_beyond_the_bitmap_is_an_error():
    with pytest.raises(IndexError):
        set_rows(np.zeros(9, np.uint8), np.array([[72]], np.uint64))
