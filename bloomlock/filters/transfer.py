"""Whole bitmaps: between a filter in Redis and one in the process, to a file, to another name.

Bits only ever go from 0 to 1, so a copy made while other clients add holds at least what was added
before it began. With a time window that holds for the slices that are live. A copy has the state
that a shard had when it was read first. What is set in a later slice meanwhile is not live in it,
and is wiped, or is of that slice, when the copy turns to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.arrays import np
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import COPY as COPIED
from bloomlock.descriptor import (
    HEADER_BYTES,
    has_discards,
    unflagged,
)
from bloomlock.effects import ConnectionLost, Core
from bloomlock.errors import BloomlockError, FilterLostError
from bloomlock.parallel import in_parallel
from bloomlock.sizing import FIRST_BYTE
from bloomlock.slices import slices_in
from bloomlock.strategies.base import (
    header_command,
    header_from_bytes,
    plain_header,
    start_command,
)
from bloomlock.strategies.bitmap import image_bytes, merge_image

from .file_format import RECORD_BYTES, Images, Part, encode_table
from .files import TABLE_PART_RECORDS
from .memory import MemoryBloomFilter
from .prepared import Prepared
from .state import in_one_generation
from .stored_filter import most_slices
from .support import COPY, FROM_MEMORY, TO_MEMORY, check_support
from .tombstones import read_set

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from bloomlock.keys import FilterKeys
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

    Bytes = npt.NDArray[np.uint8]

BYTES_PER_TRIP = 2 * 1024 * 1024
TABLES_AT_ONCE = 8
FETCHED_BYTES = 16 * 1024 * 1024
"""Shards that are read at once."""


def merge(state: FilterState, memory: MemoryBloomFilter) -> Core[None]:
    """Add everything that a filter in the process holds; may be repeated."""

    def send(view: View) -> Core[bool | None]:
        discards = view.discards
        check_support(FROM_MEMORY, state.strategy.name, view.descriptor, discards=discards)
        memory._state.check_same_bits(view.descriptor)  # noqa: SLF001 - our own class
        for shard, image in zip(view.shards, memory.images(), strict=True):
            # A copy: other threads may be adding, and what is sent again must be what was sent.
            segment = yield from merge_image(shard, image.copy(), waits=True, flagged=False)
            if isinstance(segment.error, ConnectionLost):
                raise segment.error.cause from None
            if segment.error is not None:
                raise segment.error
            if segment.header != view.header:
                _refuse_discards(state, view, segment.header, FROM_MEMORY)
                return None
        yield from state.fill.look_after_add(view)
        return True

    yield from in_one_generation(state, send)


def fetch(state: FilterState) -> Core[MemoryBloomFilter]:
    """Return the bits as a filter in the process.

    What was added before is in it, what is added meanwhile may be, some bits of an item included.
    """

    def read(view: View) -> Core[MemoryBloomFilter | None]:
        check_support(TO_MEMORY, state.strategy.name, view.descriptor)
        most = max(1, FETCHED_BYTES // image_bytes(view.shards[0]))
        asked = [_fetch_shard(state, view, shard) for shard in view.shards]
        fetched = yield from in_parallel(asked, most)
        images = [image for image in fetched if image is not None]
        if len(images) < len(fetched):
            return None
        return MemoryBloomFilter.of(view.descriptor, images)

    return (yield from in_one_generation(state, read))


def _refuse_discards(state: FilterState, view: View, header: int, feature: str) -> None:
    """Raise ConfigurationError if a header of the view's generation has the flag of discards."""
    if has_discards(header) and view.descriptor.has_header(unflagged(header)):
        check_support(feature, state.strategy.name, discards=True)


def _fetch_shard(state: FilterState, view: View, shard: Shard) -> Core[Bytes | None]:
    size = image_bytes(shard)
    image = np.zeros(size, np.uint8)
    for start in range(HEADER_BYTES, size, BYTES_PER_TRIP):
        stop = min(start + BYTES_PER_TRIP, size)
        bits, header = yield from ask(
            shard.key,
            encode_command("GETRANGE", shard.key, start, stop - 1),
            header_command(shard.key),
        )
        if (found := header_from_bytes(header)) != shard.header:
            _refuse_discards(state, view, found, TO_MEMORY)
            return None
        image[start:stop] = np.frombuffer(bits, np.uint8)
    return image


def copy(
    state: FilterState, keys: FilterKeys, progress: Callable[[int, int], None] | None = None
) -> Core[None]:
    """Copy the filter to a name that is free; a copy that does not succeed is deleted again."""
    check_support(COPY, state.strategy.name)

    def work(view: View) -> Core[bool | None]:
        slices = yield from most_slices(state.keys, view.descriptor)
        prepared = Prepared(keys, view.descriptor, COPIED, may_replace=False, what=COPY)
        try:
            yield from prepared.begin(slices=slices)
            for number, shard in enumerate(view.shards):
                copied = view.kind.copy(shard, prepared.key(number), prepared.target)
                if not (yield from copied):
                    yield from prepared.give_up()
                    return None
                if progress is not None:
                    progress(number + 1, len(view.shards))
            yield from prepared.switch()
        except (BloomlockError, RedisError):
            yield from prepared.give_up()
            raise
        return True

    yield from in_one_generation(state, work)


class Reading:
    """Reads the bits of one generation of a filter, part by part, and its tombstones.

    Of a shard that grows meanwhile it reads the slices that there were when it began. The
    tombstones are read when it begins, before any bit, and come last: 16 bytes an item of memory.
    So each of them is of an item that has all its bits in what is read.

    Args:
        state: The filter.
        what: The feature that reads it; see support.py.

    Raises:
        ConfigurationError: If the filter does not have it.

    Attributes:
        images: How long its images are, as soon as it has begun.
    """

    images: Images

    def __init__(self, state: FilterState, what: str) -> None:
        check_support(what, state.strategy.name)
        self._state = state
        self._what = what
        self._image = self._start = 0
        self._starts: list[bytes] = []
        self._tables: list[bytes] = []

    def begin(self) -> Core[View]:
        """Find the generation that is read, and return what is known of it."""

        def find(view: View) -> Core[View | None]:
            asked = [ask(one.key, start_command(one.key)) for one in view.shards]
            self._starts = [start for (start,) in (yield from in_parallel(asked))]
            found = [header_from_bytes(start[:HEADER_BYTES]) for start in self._starts]
            if any(unflagged(header) != view.header for header in found):
                return None
            flags = [has_discards(header) for header in found]
            if not any(flags):
                return view
            flagged = [shard for shard, flag in zip(view.shards, flags, strict=True) if flag]
            sets = yield from in_parallel(
                [
                    read_set(shard.key, view.header, is_sorted=view.kind.is_sorted)
                    for shard in flagged
                ],
                TABLES_AT_ONCE,
            )
            if None in sets:
                return None
            # A shard that has no flag as yet has no tombstones, whatever comes later.
            read = dict(zip(flagged, sets, strict=True))
            self._tables = [encode_table(read.get(shard) or []) for shard in view.shards]
            return view

        self._view = view = yield from in_one_generation(self._state, find)
        self.images = Images.of(view.descriptor, self._starts)
        if self._tables:
            size = sum(map(len, self._tables)) // RECORD_BYTES
            self.images = self.images._replace(discarded=size - len(self._tables))
        return view

    def next_part(self) -> Core[Part | None]:
        """Return the next part, as in a file; None if there is no more.

        Raises:
            FilterLostError: If the filter was cleared, replaced or lost since it began.
        """
        if self._image == self.images.num_images:
            return None
        if self.images.is_table(self._image):
            table = self._tables[self._image - len(self._view.shards)]
            stop = min(self._start + TABLE_PART_RECORDS * RECORD_BYTES, len(table))
            return self._part(table[self._start : stop], len(table))
        shard = self._view.shards[self._image]
        kind, descriptor = self._view.kind, self._view.descriptor
        # As it was when it began: what is written to later slices meanwhile is left out.
        head = self._starts[self._image] if descriptor.slices else bytes(FIRST_BYTE)
        count = slices_in(head) if descriptor.growth else 1
        start, size = self._start, kind.string_bytes(descriptor, count)
        stop = min(start + BYTES_PER_TRIP, size)
        bits, header = yield from ask(
            shard.key,
            encode_command("GETRANGE", shard.key, start, stop - 1),
            header_command(shard.key),
        )
        if plain_header(header) != shard.header:
            self._state.forget()
            raise FilterLostError(
                f"filter {self._state.keys.name!r} was cleared, replaced or lost during "
                f"{self._what}"
            )
        if not start:
            bits = bytes(HEADER_BYTES) + head[HEADER_BYTES:] + bits[FIRST_BYTE:]
        return self._part(bits, size)

    def _part(self, data: bytes, size: int) -> Part:
        """Return the next part of an image, or a table, of that size, and turn to what follows."""
        part = Part(self._image, self._start, data)
        self._start += len(data)
        if self._start == size:
            self._image, self._start = self._image + 1, 0
        return part
