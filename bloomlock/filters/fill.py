"""How full a filter is: counted bits, and a watch that says so in time for little.

The bits of a Bloom filter are spread evenly, so a slice of the bitmap gives the fill of the
whole: 64 KiB are counted in some microseconds and give the number of items within 0.5 %.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.runtime.forks import LockOwner
from bloomlock.sizing import FIRST_BYTE, estimate_count, estimate_deviation
from bloomlock.strategies.base import header_command, plain_header

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core

    from .generation import View

logger = logging.getLogger("bloomlock")

SAMPLE_BYTES = 64 * 1024
NEARLY_FULL = 0.9
FEWEST_BETWEEN_LOOKS = 8
SHARES = 64
"""Clients that may add to one filter with `on_full="raise"` and keep its capacity together."""

FRESH_SECONDS = 1.0
"""How long a client goes by one look; others may have filled the filter since."""

MOST_DEVIATION = 0.01
"""Part of the capacity by which an estimate near the capacity may be wrong, if more shards would
make it better."""


class FillWatch(LockOwner):
    """Knows when to look at the fill, and what to say about it.

    Where full filters refuse items, each client may add a share of what was free when it looked
    last, and looks again then. While no more clients add than there are shares, they do not pass
    the capacity together, apart from what is added between the looks of two clients.

    Args:
        name: The filter's name, for messages.
        refuse: Whether adds are refused once the filter is full.
        clock: Seconds; None: no other client adds, so what was seen once stays true.
    """

    def __init__(
        self,
        name: str,
        *,
        refuse: bool,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        self.refuse = refuse
        self.full = False
        # Whether an add must be refused as things were when last looked at.
        self.refusing = False
        self._name = name
        self._clock = clock if refuse else None
        self._until_look = 0
        self._stale_at = math.inf
        self._samples = 0
        self._said = 0.0

    @property
    def until_look(self) -> int:
        """New items after which this process looks again; 0: it should look now."""
        return 0 if self._is_stale() else max(0, self._until_look)

    def why_refusing(self, descriptor: Descriptor) -> str:
        """Return why a full filter refuses new items, as part of a sentence."""
        return (
            f"it holds its capacity of {descriptor.capacity} items, and "
            'on_full="raise" refuses new ones'
        )

    def start(self, view: View) -> Core[None]:
        """Forget what was known and look once."""
        self._said = 0.0
        yield from self.look(view)

    def due(self, count: int) -> bool:
        """Note that this process added `count` new items; return whether it is time to look."""
        with self._lock:
            self._until_look -= count
            if self._until_look > 0 and not self._is_stale():
                return False
            # One look serves all threads; the next is not far, should this one fail.
            self._until_look = 1 if self.refuse else FEWEST_BETWEEN_LOOKS
            return True

    def _now(self) -> float:
        return self._clock() if self._clock is not None else 0.0

    def _is_stale(self) -> bool:
        return self._clock is not None and self._clock() >= self._stale_at

    def look_after_add(self, view: View) -> Core[None]:
        """Look; a look that fails is no failure of the add, and the next one comes soon."""
        try:
            yield from self.look(view)
        except RedisError as error:
            self._until_look = 1
            logger.debug("looking at the fill of %r failed: %s", self._name, error)

    def look(self, view: View) -> Core[None]:
        """Estimate the fill from slices of the bitmap. Cost: one round trip for each shard counted.

        One shard is enough where it holds ten thousand items, all are counted where each holds a
        few; see `counting`.
        """
        now = self._now()
        if view.kind.is_counted:
            counted = yield from view.kind.count(view.descriptor, view.shards)
            if counted is None:
                self._until_look = 1
                return
            self._judge(
                view.descriptor.capacity, counted.items, 0.0, "the filter takes more memory"
            )
            self._stale_at = now + FRESH_SECONDS
            return
        if (window := view.descriptor.window) is not None:
            # One shard is like the others, and many counts cost many round trips.
            self._samples += 1
            shard = view.shards[self._samples % len(view.shards)]
            counted = yield from view.kind.count(view.descriptor, [shard])
            if counted is None:
                self._until_look = 1
                return
            count = counted.fullest * len(view.shards)
            share = f"each of the {window.slices} slices of the window takes an even share"
            beyond = f"the false-positive rate rises quickly ({share})"
            self._judge(view.descriptor.capacity, count, 0.05 * view.descriptor.capacity, beyond)
            return
        counting = self.counting(view.descriptor)
        part = next(counting)
        with contextlib.suppress(StopIteration):
            while True:
                key = view.shards[part.shard].key
                bits, start = yield from ask(
                    key,
                    encode_command("BITCOUNT", key, part.first, part.first + SAMPLE_BYTES - 1),
                    header_command(key),
                )
                if plain_header(start) != view.header:
                    self._until_look = 1
                    return
                part = counting.send(bits)
        self._stale_at = now + FRESH_SECONDS

    def counting(self, descriptor: Descriptor) -> Generator[Slice, int, None]:
        """Yield slices to be counted, get the bits set in each, and draw the conclusions."""
        size = descriptor.size
        slices = max(1, (size.shard_bits + 7) // 8 // SAMPLE_BYTES)
        sampled = min(SAMPLE_BYTES * 8, size.shard_bits)
        items = 0.0
        for counted in range(1, size.shards + 1):
            self._samples += 1
            first = FIRST_BYTE + (self._samples * 7919 % slices) * SAMPLE_BYTES
            bits = yield Slice(self._samples % size.shards, first)
            filled = bits / sampled * size.shard_bits
            items += estimate_count(filled, size.shard_bits, size.num_hashes)
            count = items * size.shards / counted
            deviation = _deviation(descriptor, counted, sampled)
            exact_enough = deviation <= MOST_DEVIATION * descriptor.capacity
            if exact_enough or count + 4 * deviation < descriptor.capacity / 2:
                break
        self._judge(descriptor.capacity, count, deviation)

    def _judge(
        self,
        capacity: int,
        count: float,
        deviation: float,
        beyond: str = "the false-positive rate rises quickly",
    ) -> None:
        # Four deviations, so that the last items of a filter filled exactly to capacity still fit.
        free = capacity + 4 * deviation - count
        self.full = free < 0
        self.refusing = self.full and self.refuse
        if self.refuse:
            self._until_look = max(1, int(free) // SHARES)
        else:
            self._until_look = max(FEWEST_BETWEEN_LOOKS, int(capacity - count) // 16)
        self._say(count / capacity, capacity, beyond)

    def _say(self, ratio: float, capacity: int, beyond: str) -> None:
        level = 1.0 if self.full else NEARLY_FULL if ratio >= NEARLY_FULL else 0.0
        with self._lock:
            said, self._said = self._said, max(level, self._said)
        if level > said:
            state = "full" if self.full else "nearly full"
            logger.warning(
                "filter %r is %s: about %d %% of its capacity of %d items; beyond it %s",
                self._name,
                state,
                round(100 * ratio),
                capacity,
                beyond,
            )


class Slice(NamedTuple):
    """A part of the bitmap, SAMPLE_BYTES long or as long as the shard.

    Attributes:
        shard: Which shard.
        first: Its first byte in the shard's string.
    """

    shard: int
    first: int


def _deviation(descriptor: Descriptor, counted: int, sampled: int) -> float:
    """Return the deviation of an estimate from `sampled` bits of each of `counted` shards.

    Two independent parts: how the items of these shards set bits, and how many of all items the
    hash sends to these shards, which is binomial.
    """
    size, shards = descriptor.size, descriptor.size.shards
    capacity = descriptor.capacity
    within = estimate_deviation(
        capacity * counted / shards, size.shard_bits * counted, size.num_hashes, sampled * counted
    )
    return math.hypot(within * shards / counted, math.sqrt(capacity * (shards / counted - 1)))
