"""How full a filter is: counted bits, and a watch that says so in time for little.

The bits of a Bloom filter are spread evenly, so a part of the bitmap gives the fill of the whole:
64 KiB are counted in some microseconds and give the number of items within 0.5 %.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES, generation_of, has_discards
from bloomlock.keys import discards_key, native_key
from bloomlock.parallel import in_parallel
from bloomlock.runtime.forks import LockOwner
from bloomlock.sizing import (
    FIRST_BIT,
    FIRST_BYTE,
    error_rate_at_fill,
    estimate_count,
    estimate_deviation,
    whole_collisions,
)
from bloomlock.slice_sizes import compound_error_rate
from bloomlock.slices import Slice, live_slices
from bloomlock.strategies.base import (
    header_command,
    header_from_bytes,
    plain_header,
    start_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

    from .generation import View

logger = logging.getLogger("bloomlock")

COUNTED_BYTES_PER_COMMAND = 16 * 1024 * 1024
"""About 2 ms of the server's time."""

COMMANDS_PER_TRIP = 8
SAMPLE_BYTES = 64 * 1024
NEARLY_FULL = 0.9
FEWEST_BETWEEN_LOOKS = 8
SHARES = 64
"""Clients that may add to one filter with `on_full="raise"` and keep its capacity together."""

FRESH_SECONDS = 1.0
"""How long a client goes by one look; others may have filled the filter since."""

SHARDS_AT_A_LOOK = 64
MOST_DEVIATION = 0.01
"""Part of the capacity by which an estimate near the capacity may be wrong, if more shards would
make it better."""


class Counted(NamedTuple):
    """How full a filter is.

    Attributes:
        error_rate: The false-positive rate, where it does not follow from the bits that are 1.
        fullest: With a window, items of a filter whose slices are all as full as the fullest.
        num_bits: Bits of all slices of a filter that grows; 0: as the descriptor says.
        slices: The most that a shard of a filter that grows has.
    """

    items: int
    bits_set: int
    error_rate: float | None = None
    fullest: int = 0
    discarded: int = 0
    num_bits: int = 0
    slices: int = 1


def count_bitmaps(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    """Count the items of shards in all slices that count; an item in two of them counts twice.

    None if a shard has changed in between.
    """
    most = max(1, COMMANDS_PER_TRIP * COUNTED_BYTES_PER_COMMAND // descriptor.shard_bytes())
    found = yield from in_parallel([_count_shard(descriptor, shard) for shard in shards], most)
    items = rate = fullest = 0.0
    bits_set = num_bits = slices = discarded = 0
    for counted in found:
        if counted is None:
            return None
        counts, dead = counted
        rates = []
        for part, bits in counts:
            held = estimate_count(bits, part.bits, part.num_hashes)
            fill = bits / part.bits
            whole = 0.0 if descriptor.seeds else whole_collisions(fill, part.bits, part.num_hashes)
            rates.append(error_rate_at_fill(fill, part.num_hashes) + whole)
            items, fullest = items + held, max(fullest, held)
            bits_set, num_bits = bits_set + bits, num_bits + part.bits
        rate += compound_error_rate(rates) / len(shards)
        slices, discarded = max(slices, len(counts)), discarded + dead
    # An item with a tombstone has its bits still.
    left = max(0, round(items) - discarded)
    if (window := descriptor.window) is not None:
        most_items = round(fullest * len(shards) * window.slices)
        return Counted(left, bits_set, rate, most_items, discarded)
    known = rate if descriptor.growth else None
    return Counted(left, bits_set, known, num_bits=num_bits, discarded=discarded, slices=slices)


def _count_shard(
    descriptor: Descriptor, shard: Shard
) -> Core[tuple[list[tuple[Slice, int]], int] | None]:
    """Return the slices that count with their bits that are set, and the number of tombstones."""
    size = descriptor.size
    parts: Sequence[Slice] = [Slice(FIRST_BIT, size.shard_bits, size.num_hashes, 0.0, 0, 0)]
    if descriptor.slices:
        start, time = yield from ask(shard.key, start_command(shard.key), encode_command("TIME"))
        if len(start) < FIRST_BYTE or plain_header(start[:HEADER_BYTES]) != shard.header:
            return None
        now_us = int(time[0]) * 10**6 + int(time[1])
        parts = live_slices(descriptor.slices, descriptor.epoch_us, start, now_us)
    counts, discarded = [], 0
    for part in parts:
        found = yield from _count_bits(descriptor, shard, part)
        if found is None:
            return None
        bits, discarded = found
        counts.append((part, bits))
    return counts, discarded


def _count_bits(descriptor: Descriptor, shard: Shard, part: Slice) -> Core[tuple[int, int] | None]:
    total, key, discarded, end = 0, shard.key, 0, part.end_byte
    commands = [
        encode_command("BITCOUNT", key, start, min(start + COUNTED_BYTES_PER_COMMAND, end) - 1)
        for start in range(part.first_byte, end, COUNTED_BYTES_PER_COMMAND)
    ]
    cardinality = "ZCARD" if descriptor.window else "SCARD"
    after = encode_command(cardinality, discards_key(key)), header_command(key)
    for trip in range(0, len(commands), COMMANDS_PER_TRIP):
        some = commands[trip : trip + COMMANDS_PER_TRIP]
        *counts, members, start = yield from ask(key, *some, *after)
        if plain_header(start) != shard.header:
            return None
        total += sum(counts)
        # The sentinel is none; a set that is left of another generation says nothing.
        discarded = max(0, members - 1) if has_discards(header_from_bytes(start)) else 0
    return total, discarded


def count_servers_own(descriptor: Descriptor, shards: Sequence[Shard]) -> Core[Counted | None]:
    counts = yield from in_parallel([_count_own(shard) for shard in shards])
    if None in counts:
        return None
    items, size = sum(count or 0 for count in counts), descriptor.size
    filled = -math.expm1(-size.num_hashes * items / size.num_bits)
    return Counted(items, round(filled * size.num_bits))


def _count_own(shard: Shard) -> Core[int | None]:
    own = native_key(shard.key, generation_of(shard.header))
    number, there, start = yield from ask(
        shard.key,
        encode_command("BF.CARD", own),
        encode_command("EXISTS", own),
        header_command(shard.key),
    )
    return int(number) if there and plain_header(start) == shard.header else None


class FillWatch(LockOwner):
    """Knows when to look at the fill, and what to say about it.

    Where full filters refuse items, each client may add a share of what was free when it looked
    last, and looks again then. While no more clients add than there are shares, they do not pass
    the capacity together, apart from what is added between the looks of two clients. Without a
    clock no other client adds, so what was seen once stays true.
    """

    def __init__(
        self, name: str, *, refuse: bool, clock: Callable[[], float] | None = None
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
        return (
            f"it holds its capacity of {descriptor.capacity} items, and "
            'on_full="raise" refuses new ones; rebuild() makes room, and so does on_full="grow"'
        )

    def start(self, view: View) -> Core[None]:
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
        """Estimate the fill from parts of the bitmap. Cost: one round trip, two with a window."""
        now, descriptor, shards = self._now(), view.descriptor, view.shards
        if view.kind.is_counted:
            counted = yield from view.kind.count(descriptor, shards)
            if counted is not None:
                beyond = "the filter takes more memory"
                self._judge(descriptor.capacity, counted.items, 0.0, beyond)
        elif (window := descriptor.window) is not None:
            # One shard is like the others, and many counts cost many round trips.
            self._samples += 1
            shard = shards[self._samples % len(shards)]
            counted = yield from view.kind.count(descriptor, [shard])
            if counted is not None:
                share = f"each of the {window.slices} slices of the window takes an even share"
                beyond = f"the false-positive rate rises quickly ({share})"
                count, capacity = counted.fullest * len(shards), descriptor.capacity
                self._judge(capacity, count, 0.05 * capacity, beyond)
        else:
            yield from self._count_parts(view)
            return
        if counted is None:
            self._until_look = 1
        else:
            self._stale_at = now + FRESH_SECONDS

    def _count_parts(self, view: View) -> Core[None]:
        now, asked = self._now(), []
        for number, first in self.parts(view.descriptor):
            key, last = view.shards[number].key, first + SAMPLE_BYTES - 1
            asked.append(
                ask(key, encode_command("BITCOUNT", key, first, last), header_command(key))
            )
        found = yield from in_parallel(asked)
        if any(plain_header(start) != view.header for _, start in found):
            self._until_look = 1
        else:
            self.judge(view.descriptor, [bits for bits, _ in found])
            self._stale_at = now + FRESH_SECONDS

    def parts(self, descriptor: Descriptor) -> list[tuple[int, int]]:
        """Return the shards of which SAMPLE_BYTES are counted at this look, and from which byte on.

        One is enough where it holds ten thousand items.
        """
        size, most = descriptor.size, min(descriptor.size.shards, SHARDS_AT_A_LOOK)
        bound = MOST_DEVIATION * descriptor.capacity
        count = next((n for n in range(1, most) if _deviation(descriptor, n) <= bound), most)
        pieces = max(1, (size.shard_bits + 7) // 8 // SAMPLE_BYTES)
        self._samples += count
        return [
            (number % size.shards, FIRST_BYTE + number * 7919 % pieces * SAMPLE_BYTES)
            for number in range(self._samples - count, self._samples)
        ]

    def judge(self, descriptor: Descriptor, counts: Sequence[int]) -> None:
        size, parts = descriptor.size, len(counts)
        items = sum(
            estimate_count(
                bits / _sampled(descriptor) * size.shard_bits, size.shard_bits, size.num_hashes
            )
            for bits in counts
        )
        count, deviation = items * size.shards / parts, _deviation(descriptor, parts)
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
        self._say(count / capacity, capacity, "new items are refused" if self.refuse else beyond)

    def _say(self, ratio: float, capacity: int, beyond: str) -> None:
        level = NEARLY_FULL if ratio >= NEARLY_FULL else 0.0
        if self.full:  # again at 2, 4, 8 times the capacity
            level = 2.0 ** int(math.log2(min(max(ratio, 1.0), 2**20)))
        with self._lock:
            said, self._said = self._said, max(level, self._said)
        if level > said:
            logger.warning(
                "filter %r is %s: about %d %% of its capacity of %d items; beyond it %s",
                self._name,
                "full" if self.full else "nearly full",
                round(100 * ratio),
                capacity,
                beyond,
            )


def _sampled(descriptor: Descriptor) -> int:
    return min(SAMPLE_BYTES * 8, descriptor.size.shard_bits)


def _deviation(descriptor: Descriptor, counted: int) -> float:
    """Return the deviation of an estimate from a part of each of `counted` shards.

    Two independent parts: how the items of these shards set bits, and how many of all items the
    hash sends to these shards, which is binomial.
    """
    size, shards = descriptor.size, descriptor.size.shards
    capacity, sampled = descriptor.capacity, _sampled(descriptor)
    within = estimate_deviation(
        capacity * counted / shards, size.shard_bits * counted, size.num_hashes, sampled * counted
    )
    return math.hypot(within * shards / counted, math.sqrt(capacity * (shards / counted - 1)))
