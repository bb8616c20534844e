"""Which route a batch takes by itself follows from items, size and shards alone."""

from __future__ import annotations

import pytest

from bloomlock import plan
from bloomlock.filters.batches import bitmap_is_quicker


def takes_bitmap(items, capacity, optimize, shards=1):
    """Return whether a batch that meets all shards goes by bitmap, there and back."""
    made = plan(capacity, 1e-6, shards=shards, optimize=optimize)
    return bitmap_is_quicker(items * made.num_hashes, shards, 2 * made.memory_bytes)


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
    assert not takes_bitmap(int(0.8 * documented), capacity, optimize)
    assert takes_bitmap(int(1.2 * documented), capacity, optimize)
    # Each shard costs requests of its own.
    assert not takes_bitmap(int(1.2 * documented), capacity, optimize, shards=64)
