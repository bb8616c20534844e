"""Packed offsets are read back the way the scripts read them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bloomlock.hashing import Hasher
from bloomlock.sizing import HEADER_BITS, MAX_SHARD_BITS
from bloomlock.strategies.lua import pack, pack_one, row_bytes

items = st.lists(st.binary(max_size=20), min_size=1, max_size=20)
hashes = st.integers(1, 64)


def read_blocks(data: bytes, size: int) -> list[list[int]]:
    """What blocks.lua makes of its argument: the bits in the string, by word and bit."""
    rows = []
    for start in range(0, len(data), size):
        block = int.from_bytes(data[start : start + 4])
        row = []
        for at in range(start + 4, start + size, 2):
            word, bit = data[at] - 1, data[at + 1] - 1
            width = 48 if word < 10 else 32
            assert 0 <= word <= 10
            assert 0 <= bit < width
            row.append(8 * (8 + 64 * block) + 48 * word + width - 1 - bit)
        rows.append(row)
    return rows


@given(items, hashes, st.integers(16, MAX_SHARD_BITS // 512))
def test_blocks(items, num_hashes, blocks):
    hasher = Hasher(512 * blocks, num_hashes, 1, None, "blocked")
    _, rows = hasher.place(hasher.digests(items))
    packed, size = pack(rows, blocked=True), row_bytes(num_hashes, blocked=True)
    assert size % 4 == 0
    expected = [row + row[-1:] * (num_hashes % 2) for row in rows.tolist()]
    assert read_blocks(packed, size) == expected
    assert packed == b"".join(pack_one(row, blocked=True) for row in rows.tolist())


@given(items, hashes)
def test_offsets(items, num_hashes):
    hasher = Hasher(MAX_SHARD_BITS, num_hashes)
    _, rows = hasher.place(hasher.digests(items))
    packed = pack(rows, blocked=False)
    assert len(packed) == len(items) * row_bytes(num_hashes, blocked=False)
    assert np.frombuffer(packed, ">u4").reshape(rows.shape).tolist() == rows.tolist()
    assert packed == b"".join(pack_one(row, blocked=False) for row in rows.tolist())
    assert rows.min() >= HEADER_BITS
