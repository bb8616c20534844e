"""Time windows: for how long items are remembered, in how many slices, and of what size. Pure.

Each slice is a Bloom filter for an even share of the capacity. The ring has one slice more than the
window, so `slices` + 1 of them may count at a time (see slices.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING

from .errors import ConfigurationError
from .sizing import (
    BALANCED,
    FIRST_BIT,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    USUAL_SHARD_BITS,
    Size,
    best_num_hashes,
    bits_needed,
    size_for,
    too_large,
)
from .slices import Slice

if TYPE_CHECKING:
    from .sizing import Optimize

USUAL_SLICES = 6
MIN_SLICES, MAX_SLICES = 2, 12

USUAL_SLICE_BITS = 2**23
"""An add wipes a slice at most: a MiB takes the server a millisecond."""

MIN_SLICE_US = 100_000
MAX_WINDOW_US = 10 * 365 * 86_400 * 10**6


@dataclass(frozen=True, slots=True)
class Window:
    """How long items are remembered, and in how many slices.

    Attributes:
        length_us: Microseconds for which an item is remembered at least.
        slices: Slices of that time; an item is forgotten one slice later at most.

    >>> str(Window(7 * 86_400 * 10**6, 6))
    '7 days, 0:00:00 in 6 slices'
    """

    length_us: int
    slices: int

    @property
    def length(self) -> timedelta:
        """How long items are remembered at least, `length_us` as a timedelta."""
        return timedelta(microseconds=self.length_us)

    @property
    def slice_us(self) -> int:
        """Microseconds of an epoch."""
        return -(-self.length_us // self.slices)

    def __str__(self) -> str:
        """Return it as it stands in a sentence."""
        return f"{self.length} in {self.slices} slices"

    @property
    def written(self) -> str:
        """What is stored of it."""
        return f"{self.length_us}/{self.slices}"

    def slice_items(self, capacity: int) -> int:
        """Return how many items each slice is made for."""
        return -(-capacity // self.slices)

    def slice_rate(self, error_rate: float) -> float:
        """Return the rate that each of the slices may have.

        An item is there by mistake if it is in one slice by mistake: the places of its bits are the
        same in all, but other items set them.
        """
        return error_rate / (self.slices + 1)

    def num_hashes(self, error_rate: float, optimize: Optimize) -> int:
        """Return the number of hash functions that `optimize` gives."""
        return best_num_hashes(self.slice_rate(error_rate), optimize)

    def size_for(
        self,
        capacity: int,
        error_rate: float,
        *,
        num_hashes: int | None = None,
        shards: int | None = None,
        seeded: bool = False,
    ) -> Size:
        """Return the size of the smallest slices for a window with `capacity` items.

        Args:
            capacity: Items of a window, n.
            error_rate: Of all slices together, p.
            num_hashes: k; None: the best one for "balanced".
            shards: Number of shards; None: as many as keep a slice below 1 MiB, and all below 6.
            seeded: Whether each hash function has a seed of its own.

        >>> size = Window(7 * 86_400 * 10**6, 6).size_for(1_000_000, 1e-6, num_hashes=19)
        >>> round(7 * size.num_bits / 1_000_000, 1)
        38.7
        """
        items, rate, ring = self.slice_items(capacity), self.slice_rate(error_rate), self.slices + 1
        k = num_hashes or self.num_hashes(error_rate, BALANCED)
        bits = bits_needed(items, rate, k)
        if shards is None:
            usual = min(USUAL_SLICE_BITS, USUAL_SHARD_BITS // ring)
            shards = min(MAX_SHARDS, max(1, -(-bits // usual)))
        size = size_for(items, rate, num_hashes=k, shards=shards, seeded=seeded)
        if self.ring(capacity, error_rate, size)[-1].end_byte * 8 > MAX_SHARD_BITS + FIRST_BIT:
            raise too_large(capacity, error_rate, ring * bits, shards)
        return size

    def ring(self, capacity: int, error_rate: float, size: Size) -> tuple[Slice, ...]:
        """Return the slices of a shard."""
        items, rate = self.slice_items(capacity), self.slice_rate(error_rate)
        bits, room = size.shard_bits, math.ceil(items / size.shards)
        return tuple(
            Slice(
                FIRST_BIT + number * 8 * ((bits + 7) // 8), bits, size.num_hashes, rate, items, room
            )
            for number in range(self.slices + 1)
        )


def check_window(window: object, slices: object) -> Window | None:
    """Return the window that a caller asks for (None: none), or raise ConfigurationError.

    Args:
        window: A timedelta, or seconds; None: items are remembered for ever.
        slices: In how many slices; None: 6.

    >>> check_window(timedelta(days=7), None)
    Window(length_us=604800000000, slices=6)
    """
    if window is None:
        if slices is not None:
            raise ConfigurationError(
                f"slices must be None without window=, which they divide, not {slices!r:.80}"
            )
        return None
    count = USUAL_SLICES if slices is None else slices
    if (
        isinstance(count, bool)
        or not isinstance(count, int)
        or not MIN_SLICES <= count <= MAX_SLICES
    ):
        raise ConfigurationError(
            f"slices must be a whole number from {MIN_SLICES} to {MAX_SLICES} or None, not "
            f"{slices!r:.80}"
        )
    least, most = MIN_SLICE_US * count, MAX_WINDOW_US
    allowed = (
        f"window must be a timedelta or seconds, at least {least / 10**6:g} s with {count} slices "
        "and at most 3650 days"
    )
    if isinstance(window, timedelta):
        length_us = window // timedelta(microseconds=1)
    elif isinstance(window, Real) and not isinstance(window, bool) and math.isfinite(window):
        length_us = round(float(window) * 10**6)
    else:
        raise ConfigurationError(f"{allowed}, not {window!r:.80}")
    if not least <= length_us <= most:
        raise ConfigurationError(f"{allowed}, not {window!r:.80}")
    return Window(length_us, count)


def read_window(text: str) -> Window:
    """Return the window that is stored as this text, or raise ConfigurationError.

    >>> read_window("604800000000/6")
    Window(length_us=604800000000, slices=6)
    """
    length, _, slices = text.partition("/")
    if length.isdecimal() and slices.isdecimal() and MIN_SLICES <= int(slices) <= MAX_SLICES:
        window = Window(int(length), int(slices))
        if MIN_SLICE_US * window.slices <= window.length_us <= MAX_WINDOW_US:
            return window
    raise ConfigurationError(f"window must be microseconds/slices, not {text!r:.80}")
