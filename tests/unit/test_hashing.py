"""Where items lie: written-down vectors hold, both paths agree with the formulas, without bias."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mmh3 import mmh3_x64_128_utupledigest

from bloomlock.hashing import Hasher, encode_item, encode_items
from bloomlock.sizing import FIRST_BIT, MAX_SHARD_BITS

VECTORS = [
    vector
    for name in ("vectors.json", "vectors_keyed.json")
    for vector in json.loads(Path(__file__).with_name(name).read_text("utf-8"))
]
sizes = st.one_of(st.integers(8192, MAX_SHARD_BITS), st.just(MAX_SHARD_BITS), st.just(2**31))
shard_numbers = st.integers(1, 4096)
seeds = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64, unique=True).map(tuple)
shapes = st.one_of(
    st.tuples(sizes, st.integers(1, 64), shard_numbers, st.none()),
    seeds.flatmap(
        lambda given: st.tuples(sizes, st.just(len(given)), shard_numbers, st.just(given))
    ),
)
keys = st.none() | st.binary(min_size=16, max_size=64)


def placed(hasher, items):
    shards = [0] * len(items)
    digests = hasher.digests(items)
    for shard, indices in hasher.by_shard(digests).items():
        for index in indices:
            shards[index] = shard
    return shards, hasher.place(digests).tolist()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_written_vectors_still_hold(vector):
    seeds, key = tuple(vector.get("seeds", ())) or None, vector.get("key_hex")
    hasher = Hasher(
        vector["shard_bits"],
        vector["num_hashes"],
        vector["shards"],
        seeds,
        key=None if key is None else bytes.fromhex(key),
    )
    data = bytes.fromhex(vector["item_hex"])
    expected = (vector["shard"], [FIRST_BIT + offset for offset in vector["offsets"]])
    assert hasher.locate(data) == expected
    assert placed(hasher, [data]) == ([expected[0]], [expected[1]])


def by_the_book(hasher: Hasher, key: bytes | None, data: bytes) -> tuple[int, list[int]]:
    """The formulas of hashing.py's docstring, one by one."""
    bits = hasher.shard_bits
    if hasher.seeds:
        halves = [mmh3_x64_128_utupledigest(data, seed)[0] for seed in hasher.seeds]
        offsets = [(half % bits + i) % bits + FIRST_BIT for i, half in enumerate(halves)]
        return (halves[0] * hasher.shards) >> 64, offsets
    h1, h2 = mmh3_x64_128_utupledigest(data, 0)
    if key is not None:
        digest = blake2b(data, digest_size=16, key=key).digest()
        h1, h2 = (int.from_bytes(half, "little") for half in (digest[:8], digest[8:]))
    x, y, z = h1 % bits, h2 % bits, (h2 // bits) % bits
    offsets = [
        (x + i * y + i * (i - 1) // 2 * z + (i + 1) * i * (i - 1) // 6) % bits + FIRST_BIT
        for i in range(hasher.num_hashes)
    ]
    return (h1 * hasher.shards) >> 64, offsets


@given(shapes, keys, st.lists(st.binary(max_size=70), max_size=20))
@example((MAX_SHARD_BITS, 64, 256, None), None, [b"", b"\xff" * 64])
def test_one_many_and_book_agree_bit_for_bit(shape, key, items):
    key = key if shape[-1] is None else None
    hasher = Hasher(*shape, key=key)
    shards, offsets = placed(hasher, items)
    expected = list(zip(shards, offsets, strict=True))
    assert [hasher.locate(item) for item in items] == expected
    assert [by_the_book(hasher, key, item) for item in items] == expected
    for row in offsets:
        assert all(FIRST_BIT <= offset < FIRST_BIT + hasher.shard_bits for offset in row)


def test_a_subclass_of_str_is_its_text():
    class Path(str):
        __slots__ = ()

        def encode(self):
            return b"another"

    assert encode_item(Path("a")) == b"a"
    assert encode_items([Path("a"), "b"]) == [b"a", b"b"]
