"""How full a filter is: counted bits, and a watch that says so in time for little.

The bits of a Bloom filter are spread evenly, so a slice of the bitmap tells the fill of the
whole: 64 KiB are counted in some microseconds and give the number of items within 0.5 %.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import Core, ask, encode_command
from bloomlock.descriptor import HEADER_BYTES, header_from_bytes
from bloomlock.runtime.forks import LockOwner
from bloomlock.strategies.bits import header_command

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor

    from .view import View

logger = logging.getLogger("bloomlock")

SAMPLE_BYTES = 64 * 1024
COUNTED_BYTES_PER_COMMAND = 16 * 1024 * 1024
"""About 2 ms of the server's time."""

COMMANDS_PER_TRIP = 8
NEARLY_FULL = 0.9
FEWEST_BETWEEN_LOOKS = 8


class FillWatch(LockOwner):
    """Knows when to look at the fill, and what to say about it.

    Looks after attaching, and then whenever this process has added a sixteenth of what was
    still free, so that up to sixteen processes together cannot pass the capacity unseen.

    Args:
        name: The filter's name, for messages.
        refuse: Whether adds are refused once the filter is full.
    """

    def __init__(self, name: str, *, refuse: bool) -> None:
        """Start knowing nothing."""
        super().__init__()
        self.refuse = refuse
        self.full = False
        # Whether an add must be refused as things were when last looked at.
        self.refusing = False
        self._name = name
        self._until_look = 0
        self._samples = 0
        self._said = 0.0

    @property
    def until_look(self) -> int:
        """New items after which this process looks again."""
        return self._until_look

    def start(self, view: View) -> Core[None]:
        """Forget what was known and look once."""
        self._said = 0.0
        yield from self.look(view)

    def due(self, count: int) -> bool:
        """Note that this process added `count` new items; tell whether it is time to look."""
        with self._lock:
            self._until_look -= count
            if self._until_look > 0:
                return False
            # One look tells all threads; the next is not far, should this one come to nothing.
            self._until_look = FEWEST_BETWEEN_LOOKS
            return True

    def look_after_add(self, view: View) -> Core[None]:
        """Look; a look that fails is no failure of the add, and the next one comes soon."""
        try:
            yield from self.look(view)
        except (RedisError, OSError) as error:
            self._until_look = 1
            logger.debug("looking at the fill of %r failed: %s", self._name, error)

    def look(self, view: View) -> Core[None]:
        """Estimate the fill from one slice of one shard. Cost: one round trip."""
        shard, first, sampled = self.next_sample(view.descriptor)
        key = view.shards[shard].key
        bits, start = yield from ask(
            key,
            encode_command("BITCOUNT", key, first, first + SAMPLE_BYTES - 1),
            header_command(key),
        )
        if header_from_bytes(start) != view.header:
            self._until_look = 1
            return
        self.judge(view.descriptor, bits, sampled)

    def next_sample(self, descriptor: Descriptor) -> tuple[int, int, int]:
        """Return the slice to count next: shard, first byte in its string, bits."""
        size = descriptor.size
        slices = max(1, (size.shard_bits + 7) // 8 // SAMPLE_BYTES)
        self._samples += 1
        first = HEADER_BYTES + (self._samples * 7919 % slices) * SAMPLE_BYTES
        return self._samples % size.shards, first, min(SAMPLE_BYTES * 8, size.shard_bits)

    def judge(self, descriptor: Descriptor, bits: int, sampled: int) -> None:
        """Draw the conclusions from `bits` set among `sampled` of a filter with that descriptor."""
        size, capacity, formulas = descriptor.size, descriptor.capacity, descriptor.formulas
        filled = bits / sampled * size.num_bits
        count = formulas.estimate_count(filled, size.num_bits, size.num_hashes)
        deviation = formulas.estimate_deviation(capacity, size.num_bits, size.num_hashes, sampled)
        # Four deviations, so that the last items of a filter filled exactly to capacity still fit.
        self.full = count > capacity + 4 * deviation
        self.refusing = self.full and self.refuse
        self._until_look = max(FEWEST_BETWEEN_LOOKS, int(capacity - count) // 16)
        self._say(count / capacity, capacity)

    def _say(self, ratio: float, capacity: int) -> None:
        level = 1.0 if self.full else NEARLY_FULL if ratio >= NEARLY_FULL else 0.0
        with self._lock:
            said, self._said = self._said, max(level, self._said)
        if level > said:
            state = "full" if self.full else "nearly full"
            logger.warning(
                "filter %r is %s: about %d %% of its capacity of %d items; beyond it the "
                "false-positive rate rises quickly",
                self._name,
                state,
                round(100 * ratio),
                capacity,
            )


def count_bits(view: View) -> Core[int | None]:
    """Count the set bits of all shards; None if the filter changed meanwhile.

    Cost: all bitmaps are read by the server, at most 16 MiB in one command; one round trip for
    each 128 MiB.
    """
    total = 0
    size = (view.descriptor.size.shard_bits + 7) // 8
    for shard in view.shards:
        key = shard.key
        starts = range(HEADER_BYTES, HEADER_BYTES + size, COUNTED_BYTES_PER_COMMAND)
        commands = [
            encode_command("BITCOUNT", key, start, start + COUNTED_BYTES_PER_COMMAND - 1)
            for start in starts
        ]
        for trip in range(0, len(commands), COMMANDS_PER_TRIP):
            *counts, start = yield from ask(
                key, *commands[trip : trip + COMMANDS_PER_TRIP], header_command(key)
            )
            if header_from_bytes(start) != view.header:
                return None
            total += sum(counts)
    return total
