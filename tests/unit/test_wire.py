"""Offsets on the wire: their text is what Python itself would write."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from bloomlock.strategies.base import encode_each, encode_offsets, unfilled

BEFORE, AFTER = "$6\r\nSETBIT\r\n$5\r\nkäy\0\r\n".encode(), b"$1\r\n1\r\n"
EDGES = [0, 1, *(10**power + step for power in range(1, 10) for step in (-1, 0, 1)), 2**32 - 1]
numbers = st.lists(st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(EDGES)))


@given(numbers)
@example(EDGES)
@example([])
@example([0])
@example(EDGES * 4)
def test_offsets_read_as_python_writes_them(offsets):
    texts = [str(offset).encode() for offset in offsets]
    expected = [BEFORE + b"$%d\r\n%b\r\n" % (len(text), text) + AFTER for text in texts]
    array = np.array(offsets, np.uint64)
    assert unfilled(encode_offsets(array, BEFORE, AFTER)) == b"".join(expected)
    assert encode_each(array, BEFORE, AFTER) == expected
