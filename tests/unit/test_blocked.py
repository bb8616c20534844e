"""The blocked layout: its rate, its places and its estimates, each against another way there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from murmur import murmur3_x64_128

from bloomlock import ConfigurationError, blocked, sizing
from bloomlock.hashing import Hasher
from bloomlock.sizing import HEADER_BITS, MAX_SHARD_BITS

VECTORS = json.loads(Path(__file__).with_name("vectors_blocked.json").read_text("utf-8"))

hashers = st.builds(
    lambda blocks, num_hashes, shards: Hasher(512 * blocks, num_hashes, shards, None, "blocked"),
    st.integers(16, MAX_SHARD_BITS // 512),
    st.integers(1, 64),
    st.integers(1, 4096),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_written_vectors_still_hold(vector):
    shape = (vector[name] for name in ("shard_bits", "num_hashes", "shards"))
    hasher = Hasher(*shape, None, "blocked")
    expected = (vector["shard"], [HEADER_BITS + offset for offset in vector["offsets"]])
    assert hasher.locate(bytes.fromhex(vector["item_hex"])) == expected


def by_the_book(hasher: Hasher, data: bytes) -> tuple[int, list[int]]:
    """The formulas of blocked.py's docstring, one by one."""
    h1, h2 = murmur3_x64_128(data, 0)
    block = h1 % (hasher.shard_bits // 512)
    salts = (murmur3_x64_128(str(i).encode(), 0) for i in range(hasher.num_hashes))
    positions = [(h2 * (first | 1) + second) % 2**64 >> 55 for first, second in salts]
    places = [HEADER_BITS + 512 * block + position for position in positions]
    return (h1 * hasher.shards) >> 64, places


@given(hashers, st.lists(st.binary(max_size=70), min_size=1, max_size=20))
@example(Hasher(MAX_SHARD_BITS // 512 * 512, 64, 256, None, "blocked"), [b"", b"\xff" * 64])
def test_scalar_batch_and_book_agree_bit_for_bit(hasher, items):
    shards, offsets = hasher.place(hasher.digests(items))
    batch = list(zip(shards.tolist(), offsets.tolist(), strict=True))
    assert [hasher.locate(item) for item in items] == batch
    assert [by_the_book(hasher, item) for item in items] == batch
    assert (offsets < HEADER_BITS + hasher.shard_bits).all()
    blocks = (offsets - np.uint64(HEADER_BITS)) // np.uint64(512)
    assert (blocks == blocks[:, :1]).all()


def test_no_item_has_all_its_bits_in_one_place():
    # The digest of the empty item is 0: products alone would all be the same.
    for item in (b"", b"\0", b"a"):
        assert len(set(Hasher(8192, 14, 1, None, "blocked").locate(item)[1])) >= 12


def rate_of_blocks_filled_ball_by_ball(num_hashes: int, items: float) -> float:
    """Mean over a Poisson number of items of E[(set bits / 512)^k]: no alternating sum."""
    filled = np.zeros(513)
    filled[0] = 1.0
    share = np.arange(513) / 512
    chance, rate = math.exp(-items), 0.0
    for count in range(int(items + 12 * math.sqrt(items) + 20)):
        rate += chance * float(filled @ share**num_hashes)
        chance *= items / (count + 1)
        for _ in range(num_hashes):
            grown = filled * (1 - share)
            filled = filled * share
            filled[1:] += grown[:-1]
    return rate


@pytest.mark.parametrize(
    ("num_hashes", "items"),
    [(1, 355), (6, 51.6), (8, 32.7), (14, 13.05), (14, 40), (19, 6.3), (30, 5), (14, 0.01)],
)
def test_the_rate_is_the_mean_over_blocks(num_hashes, items):
    expected = rate_of_blocks_filled_ball_by_ball(num_hashes, items)
    assert blocked.block_rate(num_hashes, items) == pytest.approx(expected, rel=1e-9)


@pytest.mark.measures
@given(st.integers(1, 10**9), st.floats(1e-9, 0.5))
def test_the_rate_is_kept_at_capacity_and_one_block_less_would_break_it(capacity, error_rate):
    size = blocked.size_for(capacity, error_rate)
    assert size.shard_bits % 512 == 0
    assert size.shard_bits <= MAX_SHARD_BITS
    each = sizing.shard_capacity(capacity, size.shards)
    assert blocked.expected_error_rate(each, size.shard_bits, size.num_hashes) <= error_rate
    if size.shard_bits > 8192:
        less = size.shard_bits - 512
        # items_per_block is exact to 1e-7, and one block of a large filter is less than that.
        rate = blocked.expected_error_rate(each * (1 + 3e-7), less, size.num_hashes)
        assert rate > error_rate


@pytest.mark.measures
@pytest.mark.parametrize("error_rate", [0.5, 0.01, 1e-3, 1e-6, 1e-9])
def test_no_other_number_of_hashes_needs_two_percent_less(error_rate):
    items = blocked.items_per_block(error_rate, blocked.best_num_hashes(error_rate, "memory"))
    assert all(blocked.items_per_block(error_rate, k) < 1.02 * items for k in range(1, 40))


def filled(size: sizing.Size, count: int, seed: int) -> np.ndarray:
    """The bits of a filter of one shard that holds so many random items, block by block."""
    digests = np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)
    bits = np.zeros(size.shard_bits, bool)
    bits[blocked.places_in_blocks(digests, size.shard_bits // 512, size.num_hashes)] = True
    return bits.reshape(-1, 512)


# Sixty million draws at 1e-6: that patterns of one digest are as good as independent ones shows
# only in the count of items that are seen by chance.
@pytest.mark.measures
@pytest.mark.parametrize(
    ("error_rate", "num_hashes", "blocks", "probes"),
    [
        (1e-2, 6, 5_000, 2),
        (1e-2, 2, 5_000, 2),
        (1e-3, 8, 5_000, 4),
        (1e-3, 4, 5_000, 4),
        (1e-6, 14, 20_000, 60),
        (1e-6, 5, 20_000, 60),
    ],
)
def test_the_measured_rate_is_the_one_asked_for(error_rate, num_hashes, blocks, probes):
    items = blocked.items_per_block(error_rate, num_hashes)
    size = sizing.Size(512 * blocks, num_hashes, 1)
    bits = filled(size, int(items * blocks), seed=1)
    expected = float((bits.mean(axis=1) ** num_hashes).mean())
    assert expected < 1.25 * error_rate
    random = np.random.default_rng(2)
    false = 0
    for _ in range(probes):
        digests = random.integers(0, 2**64, (1_000_000, 2), dtype=np.uint64)
        for step in range(num_hashes):
            # Each step halves what is left; salt by salt, so that few are computed in vain.
            last = blocked.places_in_blocks(digests, blocks, step + 1)[:, step]
            digests = digests[bits.ravel()[last]]
        false += len(digests)
    drawn = probes * 1_000_000
    assert abs(false - drawn * expected) < 4.5 * math.sqrt(drawn * expected)


@given(st.floats(0.01, 3), st.sampled_from([0.1, 1e-3, 1e-6]))
def test_the_count_is_recovered_from_the_expected_bits(share, error_rate):
    size = blocked.size_for(1_000_000, error_rate)
    count, blocks = share * 1_000_000, size.num_bits / 512
    clear = math.exp(count * math.log1p(-(1 - (511 / 512) ** size.num_hashes) / blocks))
    bits_set = size.num_bits * (1 - clear)
    found = blocked.estimate_count(bits_set, size.num_bits, size.num_hashes)
    assert found == pytest.approx(count, rel=1e-4)
    rate = blocked.expected_error_rate(count, size.num_bits, size.num_hashes)
    assert blocked.error_rate_at_fill(1 - clear, size.num_hashes) == pytest.approx(rate, rel=1e-3)


def test_estimates_scatter_as_they_say():
    size = blocked.size_for(10_000, 1e-3)
    quarter = size.num_bits // 512 // 4
    counts = []
    for seed in range(150):
        bits = filled(size, 10_000, seed)
        whole = blocked.estimate_count(int(bits.sum()), size.num_bits, size.num_hashes)
        sample = bits[:quarter].mean() * size.num_bits
        counts.append((whole, blocked.estimate_count(sample, size.num_bits, size.num_hashes)))
    for found, sampled in zip(np.transpose(counts), (size.num_bits, quarter * 512), strict=True):
        deviation = blocked.estimate_deviation(10_000, size.num_bits, size.num_hashes, sampled)
        assert found.mean() == pytest.approx(10_000, abs=5 * deviation / math.sqrt(150))
        assert found.std() == pytest.approx(deviation, rel=0.3)


def test_a_full_and_an_empty_bitmap():
    assert blocked.error_rate_at_fill(1.0, 14) == 1.0
    assert blocked.error_rate_at_fill(0.0, 14) == 0.0
    assert blocked.estimate_count(0, 8192, 14) == 0
    assert math.isfinite(blocked.estimate_count(8192, 8192, 14))


def test_the_block_says_nothing_about_the_shard():
    hasher = Hasher(512 * 100, 1, 7, None, "blocked")
    shards, offsets = hasher.place(hasher.digests([b"%d" % number for number in range(70_000)]))
    cells = shards * np.uint64(100) + (offsets[:, 0] - np.uint64(HEADER_BITS)) // np.uint64(512)
    counts = np.bincount(cells.astype(np.int64), minlength=700)
    # Chi square with 699 degrees of freedom: 37 is its standard deviation.
    assert ((counts - 100) ** 2 / 100).sum() < 699 + 6 * 37


def test_large_filters_take_as_many_shards_as_they_need():
    size = blocked.size_for(1_000_000_000, 1e-6, num_hashes=14)
    assert size.shards == 10
    assert HEADER_BITS + size.shard_bits <= 2**32
    with pytest.raises(ConfigurationError, match="1 shards hold"):
        blocked.size_for(1_000_000_000, 1e-6, shards=1)
    with pytest.raises(ConfigurationError, match=r"needs about 2\^48.\d bits"):
        blocked.size_for(10**13, 1e-6, num_hashes=14)


def test_rates_that_would_double_the_memory_are_refused():
    with pytest.raises(ConfigurationError, match="error_rate must be at least 1e-09 with layout="):
        blocked.size_for(1000, 9e-10)
