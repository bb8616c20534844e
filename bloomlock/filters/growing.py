"""When a filter grows: a client that finds the newest slice of a shard full adds the next one.

Shards grow one by one. What a shard has is in its string alone, so no step is between two shards,
and a client that dies leaves nothing to be completed. Of several clients that find a slice full one
adds the next: the script compares the header and the number of slices.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.effects import ConnectionLost
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script
from bloomlock.sizing import FIRST_BYTE, estimate_count
from bloomlock.slices import slices_in
from bloomlock.strategies.base import header_command, plain_header, start_command
from bloomlock.strategies.script import too_many_slices

from .fill import FRESH_SECONDS, SHARDS_AT_A_LOOK, SHARES, FillWatch
from .room import check_room

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

FINEST = 1024
"""A client looks again after this part of a slice at the earliest."""

NEARLY_FULL = 0.9
"""From there on all shards are looked at."""

_GROW = Script("header", "grow")


class _Looked(NamedTuple):
    """A shard as it was found: the items in its newest slice, and those that it still takes."""

    shard: Shard
    slices: int
    items: float
    left: float


class GrowthWatch(FillWatch):
    """Adds a slice where the newest one is full.

    A slice has room for a sixteenth more than it is full at, so up to 64 clients that add at once
    do not pass the rate of any slice.
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
        """Look at the newest slices, and grow. Cost: a round trip; three more for a new slice."""
        shards: Sequence[Shard] = view.shards
        if len(shards) > SHARDS_AT_A_LOOK:
            # All are about as full. So some are looked at, others each time.
            first = self._samples * SHARDS_AT_A_LOOK % len(shards)
            shards = (*shards, *shards)[first : first + SHARDS_AT_A_LOOK]
        self._no_room = None
        while True:
            began = self._now()
            found = yield from in_parallel([self._look_at(view, shard) for shard in shards])
            looked = [one for one in found if one is not None]
            if len(looked) < len(found):
                self._until_look = 1
                return
            is_near = any(one.left < (1 - NEARLY_FULL) * one.items for one in looked)
            if is_near and len(shards) < len(view.shards):
                shards = view.shards
                continue
            most = len(view.descriptor.slices)
            may_grow = [one for one in looked if one.left <= 0 and one.slices < most]
            if not may_grow or not (yield from self._grow(view, may_grow)):
                break
        self._draw(view, looked)
        self._stale_at = began + FRESH_SECONDS

    def _look_at(self, view: View, shard: Shard) -> Core[_Looked | None]:
        state = shard.slices
        while True:
            count = state.count
            part = view.descriptor.slices[count - 1]
            self._samples += 1
            pieces = max(1, part.size // SAMPLE_BYTES)
            first = part.first_byte + self._samples * 7919 % pieces * SAMPLE_BYTES
            size = min(SAMPLE_BYTES, part.size)
            # Another client may grow the shard between two of these. So the length that is found
            # is that of the slices before it at least.
            bits, start, length, after = yield from ask(
                shard.key,
                encode_command("BITCOUNT", shard.key, first, first + size - 1),
                start_command(shard.key),
                encode_command("STRLEN", shard.key),
                header_command(shard.key),
            )
            if len(start) < FIRST_BYTE or plain_header(after) != shard.header:
                return None
            if (found := slices_in(start)) > len(view.descriptor.slices):
                raise too_many_slices(shard.key, found)
            state.learn(found)
            if length < view.descriptor.string_bytes(found):
                raise FilterMismatchError(
                    f"filter {self._name!r} is damaged: its string {shard.key!r} has {length} "
                    f"bytes, too few for {found} slices; delete the filter to start again"
                )
            if state.count == count:
                filled = bits / min(8 * size, part.bits) * part.bits
                items = estimate_count(filled, part.bits, part.num_hashes)
                return _Looked(shard, count, items, part.full_at - items)

    def _grow(self, view: View, full: Sequence[_Looked]) -> Core[bool]:
        """Add a slice to each of some shards; False if the server has not the memory."""
        most = max(one.slices for one in full)
        slice_bytes = view.descriptor.slices[most].size
        try:
            yield from check_room(self._keys, view.descriptor, slice_bytes)
        except ConfigurationError as error:
            self._no_room = str(error)
            logger.warning("filter %r cannot grow: %s", self._name, error)
            return False
        header = view.header.to_bytes(HEADER_BYTES, "big")
        lengths = [view.descriptor.string_bytes(one.slices + 1) - 1 for one in full]
        calls = [
            ([one.shard.key], (header, one.slices, length))
            for one, length in zip(full, lengths, strict=True)
        ]
        replies = yield from in_parallel([_GROW.call([call], repeatable=True) for call in calls])
        for one, (reply,) in zip(full, replies, strict=True):
            if isinstance(reply, ConnectionLost):
                raise reply.cause from None
            if isinstance(reply, Exception):
                self._no_room = str(reply)
                logger.warning("filter %r cannot grow: %s", self._name, reply)
                return False
            _, *count = reply
            if count:
                one.shard.slices.learn(*count)
        logger.info(
            "filter %r has grown: %d shards have %d slices", self._name, len(full), most + 1
        )
        return True

    def _draw(self, view: View, looked: Sequence[_Looked]) -> None:
        slices, count = view.descriptor.slices, len(view.shards)
        least = min(looked, key=lambda one: one.left)
        free = count * max(0.0, least.left)
        self._until_look = max(1, int(free) // SHARES, int(count * least.items) // FINEST)
        self.full = self.refusing = least.left <= 0
        if least.slices == len(slices):
            most = view.descriptor.most_items
            before = most - slices[-1].capacity
            ratio = least.items / (least.items + least.left)
            self._say((before + ratio * slices[-1].capacity) / most, most, "no new items are added")
