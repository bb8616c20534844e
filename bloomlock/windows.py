"""Time windows: which slices of a cell are live, how a shard turns to the next, and its size. Pure.

A filter with a window has cells in place of bits. Bit s of a cell belongs to slice s, which is a
Bloom filter of its own: an item has the same k cells in all slices. Time is divided into epochs of
window/slices, by the server's clock, counted from 1970. What is added in epoch e sets bit e mod B
of its cells, where a cell has B = slices + 2 bits. An item is there if one live slice has its bit
in all k cells. Epoch e is live until the end of epoch e + slices. So an item is remembered for the
window at least, and for one slice more at most.

Behind its header a shard has a state of 64 bits: the epoch it has turned to, how many slices ahead
are being wiped, and how many parts of the shard that is done for. The slice ahead is the one that
is live no more. A shard turns to the epoch of the server's clock when all slices up to it are
wiped. So B slices are `slices` + 1 that may be live, and one that is being wiped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from .errors import BloomlockError, ConfigurationError
from .sizing import (
    BALANCED,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    MEMORY,
    USUAL_SHARD_BITS,
    Size,
    best_num_hashes,
    bits_needed,
    size_for,
    too_large,
)

if TYPE_CHECKING:
    from .sizing import Optimize

USUAL_SLICES = 14
CELL_BITS = {6: 8, 14: 16, 30: 32}
"""Bits of a cell by the number of slices of a window: one that fills up, one that is wiped."""

STATE_BYTES = 8
EPOCH_SHIFT = 24
_AHEAD_SHIFT = 16
_PARTS = (1 << 16) - 1

PART_BYTES = 256 * 1024
"""Of a shard that is wiped by one command: about 0.4 ms of the server's time."""

MIN_SLICE_US = 100_000
MAX_WINDOW_US = 10 * 365 * 86_400 * 10**6
DRIFT = 0.001
"""Part of a time by which two clocks drift apart at most: both are slewed, 500 us in a second."""
DRIFT_S = 0.001
"""Seconds that are taken off a time as well: more than clocks drift apart in 0.1 s."""

MEMORY_SLACK = 1.04
"""More memory that `optimize="memory"` takes for fewer hash functions, which read a cell each."""


class State(NamedTuple):
    """What a shard says of its slices, as BITFIELD `GET i64 64` answers it.

    Attributes:
        epoch: The one it has turned to; 0: it is new.
        ahead: Slices after it that are being wiped.
        parts: Parts of the shard for which that is done.
    """

    epoch: int
    ahead: int = 0
    parts: int = 0

    @classmethod
    def of(cls, word: int) -> State:
        """Return the state that a word means.

        >>> State.of(State(7, 1, 300).word)
        State(epoch=7, ahead=1, parts=300)
        """
        return cls(word >> EPOCH_SHIFT, word >> _AHEAD_SHIFT & 0xFF, word & _PARTS)

    @property
    def word(self) -> int:
        """The 64 bits of it."""
        return self.epoch << EPOCH_SHIFT | self.ahead << _AHEAD_SHIFT | self.parts


@dataclass(frozen=True, slots=True)
class Window:
    """How long items are remembered, and in how many slices.

    Attributes:
        length_us: Microseconds for which an item is remembered at least.
        slices: Slices of that time; an item is forgotten one slice later at most.

    >>> Window(7 * 86_400 * 10**6, 14)
    Window(length_us=604800000000, slices=14)
    """

    length_us: int
    slices: int

    @property
    def cell_bits(self) -> int:
        """Bits of a cell, B."""
        return CELL_BITS[self.slices]

    @property
    def length(self) -> timedelta:
        """How long items are remembered at least, `length_us` as a timedelta."""
        return timedelta(microseconds=self.length_us)

    @property
    def slice_us(self) -> int:
        """Microseconds of an epoch."""
        return -(-self.length_us // self.slices)

    def __str__(self) -> str:
        """Return it as it stands in a sentence.

        >>> str(Window(7 * 86_400 * 10**6, 14))
        '7 days, 0:00:00 in 14 slices'
        """
        return f"{self.length} in {self.slices} slices"

    @property
    def written(self) -> str:
        """What is stored of it."""
        return f"{self.length_us}/{self.slices}"

    def epoch_at(self, now_us: int) -> int:
        """Return the epoch of a moment of the server's clock."""
        return now_us // self.slice_us

    def end_of_epoch(self, now_us: int, asked_at: float) -> tuple[int, float]:
        """Return the epoch of a moment of the server's clock, and when it is not yet over.

        Args:
            now_us: What the server's clock said.
            asked_at: The client's clock, in seconds, at a moment that was not after that.

        Returns:
            The second is by the client's clock, and before the end by what clocks drift apart.

        >>> Window(7_000_000, 7).end_of_epoch(3_250_000, 1000.0)
        (3, 1000.74825)
        """
        epoch = self.epoch_at(now_us)
        left_s = ((epoch + 1) * self.slice_us - now_us) / 10**6
        return epoch, asked_at + left_s * (1 - DRIFT) - DRIFT_S

    def is_live(self, epoch: int, turned_to: int, now: int) -> bool:
        """Return whether what was added in an epoch is remembered.

        Args:
            epoch: Of the slice.
            turned_to: The epoch of the shard's state.
            now: The epoch of the server's clock.
        """
        return max(turned_to, now) - self.slices <= epoch <= turned_to

    def epoch_of_slice(self, number: int, turned_to: int) -> int:
        """Return the last epoch, up to the one that a shard has turned to, that a slice had.

        >>> Window(7_000_000, 6).epoch_of_slice(7, 8), Window(7_000_000, 6).epoch_of_slice(0, 8)
        (7, 8)
        """
        return turned_to - (turned_to - number) % self.cell_bits

    def live_mask(self, turned_to: int, now: int) -> int:
        """Return the bits of a cell that count.

        >>> bin(Window(7_000_000, 6).live_mask(8, 8)), bin(Window(7_000_000, 6).live_mask(8, 13))
        ('0b11111101', '0b10000001')
        """
        return _live_mask(self.slices, self.cell_bits, turned_to, now)

    def slice_items(self, capacity: int) -> int:
        """Return how many items each slice is made for."""
        return -(-capacity // self.slices)

    def slice_rate(self, error_rate: float) -> float:
        """Return the rate that each of the live slices may have.

        An item is there by mistake if it is in one slice by mistake. The cells are the same, but
        the bits of different slices are set by different items.
        """
        return error_rate / (self.slices + 1)

    def num_hashes(self, error_rate: float, optimize: Optimize) -> int:
        """Return the number of hash functions that `optimize` gives."""
        rate = self.slice_rate(error_rate)
        if optimize != MEMORY:
            return best_num_hashes(rate, optimize)
        most = best_num_hashes(rate, MEMORY)
        enough = MEMORY_SLACK * 10**9 * -math.log2(rate) / math.log(2)
        return next(k for k in range(1, most + 1) if bits_needed(10**9, rate, k) <= enough)

    def size_for(
        self,
        capacity: int,
        error_rate: float,
        *,
        num_hashes: int | None = None,
        shards: int | None = None,
        seeded: bool = False,
    ) -> Size:
        """Return the smallest filter for a window with `capacity` items; its bits are cells.

        Args:
            capacity: Items of a window, n; each slice is made for an even share of them.
            error_rate: Of all live slices together, p.
            num_hashes: k; None: the best one for "balanced".
            shards: Number of shards; None: one for each 6 MiB.
            seeded: Whether each hash function has a seed of its own.

        >>> window = Window(7 * 86_400 * 10**6, 14)
        >>> size = window.size_for(1_000_000, 1e-6, num_hashes=17)
        >>> round(size.num_bits * window.cell_bits / 1_000_000, 1)
        40.9
        """
        items, rate = self.slice_items(capacity), self.slice_rate(error_rate)
        k = num_hashes or self.num_hashes(error_rate, BALANCED)
        bits = bits_needed(items, rate, k) * self.cell_bits
        if shards is None:
            shards = min(MAX_SHARDS, max(1, -(-bits // USUAL_SHARD_BITS)))
        size = size_for(items, rate, num_hashes=k, shards=shards, seeded=seeded)
        if size.shard_bits * self.cell_bits > MAX_SHARD_BITS:
            raise too_large(capacity, error_rate, bits, shards)
        return size


@lru_cache(maxsize=64)
def _live_mask(slices: int, cell_bits: int, turned_to: int, now: int) -> int:
    mask = 0
    for epoch in range(max(turned_to, now) - slices, turned_to + 1):
        mask |= 1 << epoch % cell_bits
    return mask


def check_window(window: object, slices: object) -> Window | None:
    """Return the window that a caller asks for (None: none), or raise ConfigurationError.

    Args:
        window: A timedelta, or seconds; None: items are remembered for ever.
        slices: In how many slices; None: 14.

    >>> check_window(timedelta(days=7), None)
    Window(length_us=604800000000, slices=14)
    """
    if window is None:
        if slices is not None:
            raise ConfigurationError(
                f"slices must be None without window=, which they divide, not {slices!r:.80}"
            )
        return None
    count = USUAL_SLICES if slices is None else slices
    if isinstance(count, bool) or not isinstance(count, int) or count not in CELL_BITS:
        known = ", ".join(map(str, CELL_BITS))
        raise ConfigurationError(f"slices must be one of {known} or None, not {slices!r:.80}")
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


def too_late(window: Window, what: str) -> BloomlockError:
    """Return the error for what comes too late for its slice again and again."""
    return BloomlockError(
        f"the slices of the window, {window.slice_us / 10**6:g} s each, are over before {what} "
        "gets to the server; use a longer window or fewer slices"
    )


def read_window(text: str) -> Window:
    """Return the window that is stored as this text, or raise ConfigurationError.

    >>> read_window("604800000000/14")
    Window(length_us=604800000000, slices=14)
    """
    length, _, slices = text.partition("/")
    if length.isdecimal() and slices.isdecimal() and int(slices) in CELL_BITS:
        window = Window(int(length), int(slices))
        if MIN_SLICE_US * window.slices <= window.length_us <= MAX_WINDOW_US:
            return window
    raise ConfigurationError(f"window must be microseconds/slices, not {text!r:.80}")
