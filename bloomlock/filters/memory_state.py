"""What a MemoryBloomFilter knows: its parameters, its bits, and how full they are."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any

from bloomlock.descriptor import READY
from bloomlock.errors import CapacityError, ConfigurationError
from bloomlock.hashing import encode_item
from bloomlock.sizing import estimate_count

from .batches import check_batch_size, fail_after, fail_after_adding, take_known
from .fill import SAMPLE_BYTES, Counted, FillWatch
from .inspection import FilterInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bloomlock.descriptor import Descriptor

    from .memory_bits import MemoryBits

    Items = Iterable[str | bytes]

ITEMS_PER_CHUNK = 2**14
"""Items taken from an iterable at a time: some megabytes while their bits are worked on."""


class MemoryState:
    """Parameters, bits and fill of one filter object.

    Args:
        descriptor: The parameters; the generation is of no account.
        bits: The bits.
        refuse: Whether adds are refused once the filter is full.
    """

    def __init__(self, descriptor: Descriptor, bits: MemoryBits, *, refuse: bool) -> None:
        self.descriptor = descriptor
        self.bits = bits
        self.fill = FillWatch("(in memory)", refuse=refuse)
        # What `engine.added` was when it was looked at last.
        self._noted = 0
        self.look()

    def look(self) -> None:
        """Count a sample of the bits and say so if there are many."""
        counting = self.fill.counting(self.descriptor)
        part = next(counting)
        with contextlib.suppress(StopIteration):
            while True:
                part = counting.send(self.bits.count(part.shard, part.first, SAMPLE_BYTES))
        self._allow()

    def _note(self, new: int) -> None:
        """Count new items, and look if it is time."""
        added = self.bits.engine.added
        new, self._noted = new + added - self._noted, added
        if self.fill.due(new):
            self.look()
        else:
            self._allow()

    def _allow(self) -> None:
        """Let the engine add all but the last of the items before the next look.

        It may add none to a mapped file, whose length has to be looked at first.
        """
        allowed = self.bits.writable and not self.bits.is_mapped
        most = max(0, self.fill.until_look - 1) if allowed else 0
        self.bits.engine.limit = self._noted + most

    def add(self, item: str | bytes) -> bool:
        """Add an item that the engine did not; True if it is new."""
        return self.add_chunk([encode_item(item)])[0]

    def add_many(self, items: Items) -> list[bool]:
        """Add many items; one answer for each, in order."""
        self.check_writable()
        return self._in_chunks(items, self.add_chunk)

    def add_each(self, items: Iterable[Any], batch_size: int | None) -> Iterator[tuple[Any, bool]]:
        """Add many items; yield each with its answer, in order."""
        self.check_writable()
        check_batch_size(batch_size)
        return self._each(self._chunks(items, batch_size, finish=True))

    def _each(self, chunks: Iterator[Sequence[Any]]) -> Iterator[tuple[Any, bool]]:
        count = 0
        for taken in chunks:
            try:
                answers = self.add_chunk(taken, count)
            except CapacityError as error:
                yield from zip(taken, take_known(error), strict=False)
                raise
            yield from zip(taken, answers, strict=True)
            count += len(taken)

    def exists_many(self, items: Items) -> list[bool]:
        """Test many items; one answer for each, in order."""
        return self._in_chunks(items, self.bits.exists_many)

    def update(self, items: Items) -> None:
        """Add many items."""
        self.check_writable()
        added = 0
        for taken in self._chunks(items, finish=True):
            try:
                if self._refusing():
                    self._refuse_new(taken, added)
                else:
                    self._note(sum(self.bits.add_many(taken, added)))
            except Exception as error:  # noqa: BLE001 - raised again
                fail_after_adding(added, error)
            added += len(taken)

    def merge(self, other: MemoryState) -> None:
        """Add everything that another filter holds."""
        self.check_writable()
        self.check_same_bits(other.descriptor)
        if self._refusing():
            raise self._full()
        self.bits.combine(other.bits, both=False)
        self.look()

    def intersect(self, other: MemoryState) -> None:
        """Keep what another filter holds as well."""
        self.check_writable()
        self.check_same_bits(other.descriptor)
        self.bits.combine(other.bits, both=True)
        self._begin_anew()

    def jaccard(self, other: MemoryState) -> float:
        """Return the estimated share of items in both among those in either."""
        counted = self._count(other)
        size = self.descriptor.size
        mine, theirs, either = (
            estimate_count(bits, size.num_bits, size.num_hashes) for bits in counted
        )
        return min(1.0, max(0.0, (mine + theirs) / either - 1)) if either else 1.0

    def isdisjoint(self, other: MemoryState) -> bool:
        """Return whether no bit is set in both, so that no item is in both."""
        mine, theirs, either = self._count(other)
        return mine + theirs == either

    def _count(self, other: MemoryState) -> tuple[int, int, int]:
        """Return how many bits are set here, in another filter, and in either."""
        self.check_same_bits(other.descriptor)
        return self.bits.count(), other.bits.count(), self.bits.count_either(other.bits)

    def clear(self) -> None:
        """Remove everything."""
        self.check_writable()
        self.bits.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Look at the fill after bits were cleared."""
        self.fill = FillWatch("(in memory)", refuse=self.fill.refuse)
        self.look()

    def add_chunk(self, items: Sequence[str | bytes], first: int = 0) -> list[bool]:
        """Add items, of which the first has that index; one answer for each."""
        self.check_writable()
        if self._refusing():
            return self._refuse_new(items, first)
        answers = self.bits.add_many(items, first)
        self._note(sum(answers))
        return answers

    def estimate(self, bits_set: int) -> int:
        """Return the number of distinct items from the number of set bits."""
        size = self.descriptor.size
        return round(estimate_count(bits_set, size.num_bits, size.num_hashes))

    def info(self) -> FilterInfo:
        """Return all that is known about the filter."""
        memory_bytes = sum(image.nbytes for image in self.bits.images)
        # The generation is of no account here.
        descriptor = self.descriptor.with_generation(0, READY)
        bits_set = self.bits.count()
        counted = Counted(self.estimate(bits_set), bits_set)
        return FilterInfo.of(descriptor, counted, "", "memory", memory_bytes)

    def check_writable(self) -> None:
        """Raise ConfigurationError if the bits cannot be changed."""
        if not self.bits.writable:
            raise ConfigurationError(
                "this filter was loaded with mode='r' and cannot be changed; load it with mode='c' "
                "(changes stay in this process) or 'r+' (they go to the file)"
            )

    def check_same_bits(self, other: Descriptor) -> None:
        """Raise ConfigurationError if items have other bits there."""
        mine = self.descriptor
        if not mine.same_bits(other):
            raise ConfigurationError(
                "filters can be merged only if num_bits, num_hashes, shards, seeds and key "
                f"are the same: this one has {_shape(mine)}, the other {_shape(other)}"
            )

    def _refusing(self) -> bool:
        if self.fill.refusing:
            self.look()
        return self.fill.refusing

    def _refuse_new(self, items: Sequence[str | bytes], first: int) -> list[bool]:
        seen = self.bits.exists_many(items, first)
        if not all(seen):
            raise self._full([False] * seen.index(False))
        return [False] * len(items)

    def _full(self, known: Sequence[bool] = ()) -> CapacityError:
        return CapacityError(
            f"this filter is full: it holds its capacity of {self.descriptor.capacity} items, and "
            'on_full="raise" refuses new ones',
            known,
        )

    def _in_chunks(
        self, items: Items, step: Callable[[Sequence[str | bytes], int], list[bool]]
    ) -> list[bool]:
        results: list[bool] = []
        # What the iterable raises is the caller's: it passes through as it is.
        for taken in self._chunks(items):
            try:
                results += step(taken, len(results))
            except Exception as error:  # noqa: BLE001 - raised again
                fail_after(results, error)
        return results

    def _chunks(
        self, items: Items, batch_size: int | None = None, *, finish: bool = False
    ) -> Iterator[Sequence[str | bytes]]:
        """Yield the items in chunks; with `finish` also those read before the iterable raised."""
        if isinstance(items, (str, bytes)):
            raise TypeError(
                f"items must be an iterable of str or bytes, not one {type(items).__name__}"
            )
        return self._read(iter(items), batch_size or ITEMS_PER_CHUNK, finish=finish)

    def _read(
        self, stream: Iterator[str | bytes], most: int, *, finish: bool
    ) -> Iterator[Sequence[str | bytes]]:
        failure: Exception | None = None
        while failure is None:
            taken: list[str | bytes] = []
            try:
                taken.extend(islice(stream, min(most, self._chunk_size())))
            except Exception as error:
                if not finish:
                    raise
                failure = error
            if not taken:
                break
            yield taken
        if failure is not None:
            raise failure

    def _chunk_size(self) -> int:
        if not self.fill.refuse or self.fill.refusing:
            return ITEMS_PER_CHUNK
        return min(max(1, self.fill.until_look), ITEMS_PER_CHUNK)


def _shape(descriptor: Descriptor) -> str:
    size = descriptor.size
    return (
        f"{size.num_bits}, {size.num_hashes}, {size.shards}, {descriptor.seeds} "
        f"and {_key_name(descriptor)}"
    )


def _key_name(descriptor: Descriptor) -> str:
    """Return which key it is, without anything of the key itself."""
    key = descriptor.key
    return "none" if key is None else f"the {key.kind} one of check {key.check[:8]}"
