"""Which route a batch takes by itself: a fixed rule. Pure.

By items a batch sends and sets its bits one by one. By bitmap it sends one image of each shard and,
where answers are wanted, gets one back. The constants are those of the atomic strategy where client
and server share a machine.
"""

from __future__ import annotations

BIT_S = 0.57e-6
"""Seconds that a bit takes longer by items than in a bitmap."""
SHARD_S = 0.0005
"""Of the bitmap of one shard, whatever its size: arrays, two requests and a script."""
BYTE_S = 0.5e-9
"""Of one byte of it."""


def bitmap_is_quicker(bits: int, shards: float, image_bytes: float) -> bool:
    """Return whether a batch takes less time by bitmap than by items.

    Args:
        bits: Bits of all its items, n k.
        shards: Shards that have any of its items.
        image_bytes: Bytes of bitmap that would travel, both directions together.

    >>> million = 2 * 5_848_000  # there and back, of a filter for 10^6 items at 1e-6
    >>> bitmap_is_quicker(1500 * 7, 1, million), bitmap_is_quicker(1600 * 7, 1, million)
    (False, True)
    """
    return bits * BIT_S > shards * SHARD_S + image_bytes * BYTE_S
