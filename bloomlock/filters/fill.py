"""How full a filter is: a watch that says so in time for little, and lets a filter grow.

The bits of a Bloom filter are spread evenly, so a part of the bitmap gives the fill of the whole.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError, ResponseError

from bloomlock.commands import Script, answer_of, in_parallel
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.errors import ConfigurationError
from bloomlock.runtime.forks import LockOwner
from bloomlock.sizing import estimate_count, estimate_deviation

from .generation import count_items, count_shard
from .stored_filter import check_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.keys import FilterKeys
    from bloomlock.strategies import Shard

    from .generation import View

logger = logging.getLogger("bloomlock")

SAMPLE_BYTES = 256 * 1024
"""Counted in about 25 microseconds; the number of items is exact within 0.2 %."""
NEARLY_FULL = 0.9
FEWEST_BETWEEN_LOOKS = 8
RISES = "the false-positive rate rises quickly"
SHARES = 64
"""Clients that may add to one filter with `on_full="raise"` and keep its capacity together."""

FRESH_SECONDS = 1.0
"""How long a client goes by one look; others may have filled the filter since."""

ITEMS_AT_A_LOOK, SHARDS_AT_A_LOOK = 10_000, 64
"""Shards with 10,000 items are enough for an estimate of all; its error is about 1 %."""

FINEST = 1024
"""A client looks at a slice again after this part of it at the earliest."""

_GROW = Script("header", "grow")


class FillWatch(LockOwner):
    """Says when to look at the fill, and warns of a full filter.

    Where full filters refuse items, each client may add a share of what was free when it looked
    last, and looks again then. While no more clients add than there are shares, they do not pass
    the capacity together, apart from what is added between the looks of two clients. Without a
    clock no other client adds, so what was seen once stays true.
    """

    def __init__(self, name: str, *, refuse: bool, clock: Callable[[], float] = float) -> None:
        super().__init__()
        self.refuse = refuse
        # Whether an add must be refused as things were when last looked at.
        self.refusing = False
        self._name = name
        # float() is 0.0, a clock that stands still.
        self._clock = clock if refuse else float
        self._until_look = 0
        self._stale_at = math.inf
        self._samples = 0
        self._said = 0.0

    @property
    def until_look(self) -> int:
        """New items after which this process looks again; 0: it should look now."""
        return 0 if self._clock() >= self._stale_at else max(0, self._until_look)

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
            if self.until_look:
                return False
            # One look serves all threads; the next is not far, should this one fail.
            self._until_look = 1 if self.refuse else FEWEST_BETWEEN_LOOKS
            return True

    def look_after_add(self, view: View) -> Core[None]:
        """Look; a look that fails is no failure of the add, and the next one comes soon."""
        try:
            yield from self.look(view)
        except RedisError as error:
            self._until_look = 1
            logger.debug("looking at the fill of %r failed: %s", self._name, error)

    def look(self, view: View) -> Core[None]:
        """Estimate the fill from parts of the bitmap. Cost: one round trip, more with a window."""
        shards: Sequence[Shard] = view.shards
        began, descriptor = self._clock(), view.descriptor
        beyond, deviation = RISES, 0.0
        if descriptor.native:
            beyond = "the filter takes more memory"
        else:
            shards = self._some(view, -(-ITEMS_AT_A_LOOK * len(shards) // descriptor.capacity))
            deviation = _deviation(descriptor, len(shards))
        if (window := descriptor.window) is not None:
            deviation = 0.05 * descriptor.capacity
            beyond += f" (each of the {window.slices} slices of the window takes an even share)"
        counted = yield from count_items(descriptor, shards, SAMPLE_BYTES)
        if counted is None:
            self._until_look = 1
            return
        # What was discarded has its bits still.
        items = counted.fullest or counted.items + counted.discarded
        count = items * len(view.shards) / len(shards)
        self.judge(descriptor.capacity, count, deviation, beyond)
        self._stale_at = began + FRESH_SECONDS

    def _some(self, view: View, count: int = SHARDS_AT_A_LOOK) -> Sequence[Shard]:
        """Return some of the shards, others each time; all are about as full."""
        count = min(count, SHARDS_AT_A_LOOK, len(view.shards))
        first = self._samples % len(view.shards)
        self._samples += count
        return (*view.shards, *view.shards)[first : first + count]

    def judge(
        self, capacity: int, count: float, deviation: float = 0.0, beyond: str = RISES
    ) -> None:
        # Four deviations, so that the last items of a filter filled exactly to capacity still fit.
        free = capacity + 4 * deviation - count
        self.refusing = self.refuse and free < 0
        if self.refuse:
            self._until_look = max(1, int(free) // SHARES)
            beyond = "new items are refused"
        else:
            self._until_look = max(FEWEST_BETWEEN_LOOKS, int(capacity - count) // 16)
        self._say(count / capacity, capacity, beyond, is_full=free < 0)

    def _say(self, ratio: float, capacity: int, beyond: str, *, is_full: bool) -> None:
        level = NEARLY_FULL if ratio >= NEARLY_FULL else 0.0
        if is_full:  # again at 2, 4, 8 times the capacity
            level = 2.0 ** int(math.log2(min(max(ratio, 1.0), 2**20)))
        with self._lock:
            said, self._said = self._said, max(level, self._said)
        if level > said:
            logger.warning(
                "filter %r is %s: about %d %% of its capacity of %d items; beyond it %s",
                self._name,
                "full" if is_full else "nearly full",
                round(100 * ratio),
                capacity,
                beyond,
            )


def _deviation(descriptor: Descriptor, counted: int) -> float:
    """Return the deviation of an estimate from a part of each of `counted` shards.

    Two independent parts: how the items of these shards set bits, and how many of all items the
    hash sends to these shards, which is binomial.
    """
    size, part = descriptor.size, counted / descriptor.size.shards
    items, bits = part * descriptor.capacity, counted * size.shard_bits
    sampled = min(counted * SAMPLE_BYTES * 8, bits)
    within = estimate_deviation(items, bits, size.num_hashes, sampled)
    return math.hypot(within, math.sqrt(items * (1 - part))) / part


class _Looked(NamedTuple):
    """A shard as it was found: the items in its newest slice, and those that it still takes."""

    shard: Shard
    slices: int
    items: float
    left: float


class GrowthWatch(FillWatch):
    """Adds a slice where the newest one of a shard is full.

    What a shard has is in its string alone, so a client that dies leaves nothing to be completed.
    Of several clients that find a slice full one adds the next: the script compares the header and
    the number of slices. A slice has room for a sixteenth more than it is full at, so up to 64
    clients that add at once do not pass the rate of any slice.
    """

    def __init__(self, keys: FilterKeys, clock: Callable[[], float]) -> None:
        super().__init__(keys.name, refuse=True, clock=clock)
        self._keys = keys
        self._no_room: str | None = None

    def why_refusing(self, descriptor: Descriptor) -> str:
        if self._no_room is not None:
            return f"it cannot grow now ({self._no_room})"
        return (
            f"it has all its slices and holds {descriptor.most_items} items at its error rate; "
            "up_to= at its creation says how many are needed"
        )

    def look(self, view: View) -> Core[None]:
        """Look at the newest slices, and grow. Cost: two round trips; three more for a slice."""
        shards, slices = self._some(view), view.descriptor.slices
        self._no_room = None
        while True:
            began = self._clock()
            found = yield from in_parallel([self._look_at(view, shard) for shard in shards])
            looked = [one for one in found if one is not None]
            if len(looked) < len(found):
                self._until_look = 1
                return
            is_near = any(one.left < (1 - NEARLY_FULL) * one.items for one in looked)
            if is_near and len(shards) < len(view.shards):
                shards = view.shards
                continue
            may_grow = [one for one in looked if one.left <= 0 and one.slices < len(slices)]
            if not may_grow or not (yield from self._grow(view, may_grow)):
                break
        count, least = len(view.shards), min(looked, key=lambda one: one.left)
        free = count * max(0.0, least.left)
        self._until_look = max(1, int(free) // SHARES, int(count * least.items) // FINEST)
        self._stale_at = began + FRESH_SECONDS
        self.refusing = least.left <= 0
        if least.slices == len(slices):
            most, last = view.descriptor.most_items, slices[-1].capacity
            ratio = (most - last + last * least.items / (least.items + least.left)) / most
            self._say(ratio, most, "no new items are added", is_full=self.refusing)

    def _look_at(self, view: View, shard: Shard) -> Core[_Looked | None]:
        counted = yield from count_shard(view.descriptor, shard, SAMPLE_BYTES)
        if counted is None:
            return None
        slices, _ = counted
        shard.slices.learn(len(slices))
        part, bits = slices[-1]
        items = estimate_count(bits, part.bits, part.num_hashes)
        return _Looked(shard, len(slices), items, part.full_at - items)

    def _grow(self, view: View, full: Sequence[_Looked]) -> Core[bool]:
        """Add a slice to each of some shards; False if the server has not the memory."""
        most, descriptor = max(one.slices for one in full), view.descriptor
        header = view.header.to_bytes(HEADER_BYTES, "big")
        calls = [
            ([one.shard.key], (header, one.slices, descriptor.string_bytes(one.slices + 1) - 1))
            for one in full
        ]
        try:
            yield from check_room(self._keys, descriptor, descriptor.slices[most].size)
            growing = [_GROW.call([call], repeatable=True) for call in calls]
            for (reply,) in (yield from in_parallel(growing)):
                answer_of(reply, "growth needs")
        except (ConfigurationError, ResponseError) as error:
            self._no_room = str(error)
            logger.warning("filter %r cannot grow: %s", self._name, error)
            return False
        logger.info(
            "filter %r has grown: %d shards have %d slices", self._name, len(full), most + 1
        )
        return True
