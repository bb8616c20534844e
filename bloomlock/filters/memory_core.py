"""What adding to a filter in this process takes beyond setting bits: chunks, fill, refusal."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any

from bloomlock.descriptor import READY
from bloomlock.errors import CapacityError, ConfigurationError
from bloomlock.hashing import encode_items

from .batches import after_added, after_results, check_batch_size, take_known
from .fill import SAMPLE_BYTES, FillWatch
from .inspection import FilterInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bloomlock.descriptor import Descriptor

    from .memory_bits import MemoryBits

    Items = Iterable[str | bytes]

ITEMS_PER_CHUNK = 2**14
"""Items taken from an iterable at a time: some megabytes while their bits are worked on."""

ITEMS_PER_LOOK = 256
"""Fewest items of a chunk while a filter that refuses new items fills up."""


class MemoryCore:
    """Parameters, bits and fill of one filter object.

    Args:
        descriptor: The parameters; the generation is of no account.
        bits: The bits.
        refuse: Whether adds are refused once the filter is full.
    """

    def __init__(self, descriptor: Descriptor, bits: MemoryBits, *, refuse: bool) -> None:
        """Take the bits and look how full they are."""
        self.descriptor = descriptor
        self.bits = bits
        self.fill = FillWatch("(in memory)", refuse=refuse)
        self.look()

    def look(self) -> None:
        """Count a sample of the bits and say so if there are many."""
        counting = self.fill.counting(self.descriptor)
        part = next(counting)
        with contextlib.suppress(StopIteration):
            while True:
                part = counting.send(self.bits.count(part.shard, part.first, SAMPLE_BYTES))

    def add(self, data: bytes) -> bool:
        """Add one encoded item; True if it is new."""
        if self.fill.refusing or not self.bits.writable:
            return self.add_chunk([data])[0]
        new = self.bits.add(data)
        if new and self.fill.due(1):
            self.look()
        return new

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
                answers = self.add_chunk(encode_items(taken, count))
            except CapacityError as error:
                yield from zip(taken, take_known(error), strict=False)
                raise
            yield from zip(taken, answers, strict=True)
            count += len(taken)

    def exists_many(self, items: Items) -> list[bool]:
        """Test many items; one answer for each, in order."""
        return self._in_chunks(items, lambda chunk: self.bits.exists_many(chunk).tolist())

    def update(self, items: Items) -> None:
        """Add many items."""
        self.check_writable()
        added = 0
        for taken in self._chunks(items, finish=True):
            with after_added(added):
                chunk = encode_items(taken, added)
                if self._refusing():
                    self._refuse_new(chunk)
                else:
                    self.bits.set_many(chunk)
            # How many of them are new was not asked; looking too often costs little.
            if self.fill.due(len(chunk)):
                self.look()
            added += len(chunk)

    def merge(self, other: MemoryCore) -> None:
        """Add everything that another filter holds."""
        self.check_writable()
        self.check_same_bits(other.descriptor)
        if self._refusing():
            raise self._full()
        self.bits.merge(other.bits)
        self.look()

    def clear(self) -> None:
        """Remove everything."""
        self.check_writable()
        self.bits.clear()
        self.fill = FillWatch("(in memory)", refuse=self.fill.refuse)
        self.look()

    def add_chunk(self, items: Sequence[bytes]) -> list[bool]:
        """Add encoded items; one answer for each."""
        self.check_writable()
        if self._refusing():
            return self._refuse_new(items)
        new: list[bool] = self.bits.add_many(items).tolist()
        if self.fill.due(sum(new)):
            self.look()
        return new

    def estimate(self, bits_set: int) -> int:
        """Return the number of distinct items from the number of set bits."""
        size = self.descriptor.size
        return round(
            self.descriptor.formulas.estimate_count(bits_set, size.num_bits, size.num_hashes)
        )

    def info(self) -> FilterInfo:
        """Return all that is known about the filter."""
        memory_bytes = sum(image.nbytes for image in self.bits.images)
        # The generation is of no account here.
        descriptor = self.descriptor.with_generation(0, READY)
        return FilterInfo.of(descriptor, self.bits.count(), "", "memory", memory_bytes)

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
                "filters can be merged only if num_bits, num_hashes, shards, seeds, layout and "
                f"key are the same: this one has {_shape(mine)}, the other {_shape(other)}"
            )

    def _refusing(self) -> bool:
        if self.fill.refusing:
            self.look()
        return self.fill.refusing

    def _refuse_new(self, items: Sequence[bytes]) -> list[bool]:
        seen = self.bits.exists_many(items).tolist()
        if not all(seen):
            raise self._full([False] * seen.index(False))
        return [False] * len(items)

    def _full(self, known: Sequence[bool] = ()) -> CapacityError:
        return CapacityError(
            f"this filter is full: it holds its capacity of {self.descriptor.capacity} items, and "
            'on_full="raise" refuses new ones',
            known,
        )

    def _in_chunks(self, items: Items, step: Callable[[Sequence[bytes]], list[bool]]) -> list[bool]:
        results: list[bool] = []
        # What the iterable raises is the caller's: it passes through as it is.
        for taken in self._chunks(items):
            with after_results(results):
                results += step(encode_items(taken, len(results)))
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
        return min(max(self.fill.until_look, ITEMS_PER_LOOK), ITEMS_PER_CHUNK)


def _shape(descriptor: Descriptor) -> str:
    size = descriptor.size
    return (
        f"{size.num_bits}, {size.num_hashes}, {size.shards}, {descriptor.seeds}, "
        f"{descriptor.layout!r} and {_key_name(descriptor)}"
    )


def _key_name(descriptor: Descriptor) -> str:
    """Return which key it is, without anything of the key itself."""
    key = descriptor.key
    return "none" if key is None else f"the {key.kind} one of check {key.check[:8]}"
