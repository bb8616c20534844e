"""Which route a batch takes by itself follows from items, size and shards alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock import plan
from bloomlock.filters.batches import bitmap_is_quicker

COUNTS = st.integers(1, 10**6)


def takes_bitmap(items, capacity, *, optimize=None, shards=1, ways=2):
    """Return whether a batch that meets all shards goes by bitmap; `ways` 1: there, not back."""
    made = plan(capacity, 1e-6, shards=shards, optimize=optimize)
    return bitmap_is_quicker(items * made.num_hashes, shards, ways * made.memory_bytes)


@pytest.mark.parametrize(
    ("capacity", "optimize", "documented"),
    [
        (5_000, None, 120),
        (100_000, None, 260),
        (1_000_000, None, 1_600),
        (5_000, "memory", 50),
        (100_000, "memory", 90),
        (1_000_000, "memory", 450),
    ],
)
def test_the_bitmap_begins_where_the_page_says(capacity, optimize, documented):
    assert not takes_bitmap(int(0.8 * documented), capacity, optimize=optimize)
    assert takes_bitmap(int(1.2 * documented), capacity, optimize=optimize)


@given(COUNTS, COUNTS, st.integers(1000, 10**8), st.integers(1, 16))
def test_more_items_never_lead_back_to_items_and_a_larger_filter_never_to_a_bitmap(
    few, more, capacity, shards
):
    few, more = sorted((few, more))
    assert takes_bitmap(few, capacity, shards=shards) <= takes_bitmap(more, capacity, shards=shards)
    larger = takes_bitmap(few, 2 * capacity, shards=shards)
    assert larger <= takes_bitmap(few, capacity, shards=shards)


@given(COUNTS, st.integers(1000, 10**8))
def test_without_answers_half_as_many_bytes_travel(items, capacity):
    assert takes_bitmap(items, capacity) <= takes_bitmap(items, capacity, ways=1)


def test_each_shard_costs_requests_of_its_own():
    assert takes_bitmap(2_000, 1_000_000)
    assert not takes_bitmap(2_000, 1_000_000, shards=64)
