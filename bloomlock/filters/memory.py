"""MemoryBloomFilter: the same filter in this process, bit for bit, without a server."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from bloomlock.descriptor import HEADER_BYTES, READY
from bloomlock.errors import CapacityError, ConfigurationError
from bloomlock.hashing import check_key, encode_item
from bloomlock.parameters import Wanted

from . import memory_file
from .base import Parameters
from .batches import check_batch_size, fail_after, fail_after_adding, take_known
from .contents import Counted
from .fill import SAMPLE_BYTES, FillWatch
from .inspection import FilterInfo
from .memory_bits import MemoryBits
from .options import refuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal, Self, Unpack

    import numpy as np
    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor

    from .file_format import FilePath
    from .memory_file import Mode
    from .options import OnFullHere, ShapeParameters

    Items = Iterable[str | bytes]
    Images = list[npt.NDArray[np.uint8]]

Item = TypeVar("Item", bound=str | bytes)

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

    Attributes:
        try_add: Adds an item in C; None: nothing was done, `add` has to. None where it cannot.
        try_exists: The same for `exists`.
    """

    try_add: Callable[[object], bool | None] | None = None
    try_exists: Callable[[object], bool | None] | None = None

    def __init__(self, descriptor: Descriptor, bits: MemoryBits, *, refuse: bool) -> None:
        """Take the bits and look how full they are."""
        self.descriptor = descriptor
        self.bits = bits
        self.fill = FillWatch("(in memory)", refuse=refuse)
        # The length of a mapped file has to be looked at first.
        self._compiled = None if bits.is_mapped or not bits.writable else bits.compiled
        if self._compiled is not None:
            self.try_add, self.try_exists = self._compiled.try_add, self._compiled.exists
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
        if self._compiled is not None:
            new += self._compiled.take_count()
        if self.fill.due(new):
            self.look()
        else:
            self._allow()

    def _allow(self) -> None:
        """Let C add all but the last of the items before the next look."""
        if self._compiled is not None:
            self._compiled.allow(0 if self.fill.refusing else self.fill.until_look - 1)

    def add(self, data: bytes) -> bool:
        """Add one encoded item; True if it is new."""
        if self.fill.refusing or not self.bits.writable:
            return self.add_chunk([data])[0]
        new = self.bits.add(data)
        if new:
            self._note(1)
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
                    self.bits.set_many(taken, added)
            except Exception as error:  # noqa: BLE001 - raised again
                fail_after_adding(added, error)
            # How many of them are new was not asked; looking too often costs little.
            self._note(len(taken))
            added += len(taken)

    def merge(self, other: MemoryCore) -> None:
        """Add everything that another filter holds."""
        self.check_writable()
        self.check_same_bits(other.descriptor)
        if self._refusing():
            raise self._full()
        self.bits.merge(other.bits)
        self.look()

    def intersect(self, other: MemoryCore) -> None:
        """Keep what another filter holds as well."""
        self.check_writable()
        self.check_same_bits(other.descriptor)
        self.bits.intersect(other.bits)
        self._begin_anew()

    def jaccard(self, other: MemoryCore) -> float:
        """Return the estimated share of items in both among those in either."""
        self.check_same_bits(other.descriptor)
        size, estimate = self.descriptor.size, self.descriptor.formulas.estimate_count
        mine, theirs, either = (
            estimate(bits, size.num_bits, size.num_hashes)
            for bits in (self.bits.count(), other.bits.count(), self.bits.count_either(other.bits))
        )
        return min(1.0, max(0.0, (mine + theirs) / either - 1)) if either else 1.0

    def clear(self) -> None:
        """Remove everything."""
        self.check_writable()
        self.bits.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Look at the fill after bits were cleared."""
        if self._compiled is not None:
            self._compiled.take_count()
        self.fill = FillWatch("(in memory)", refuse=self.fill.refuse)
        self.look()

    def add_chunk(self, items: Sequence[str | bytes], first: int = 0) -> list[bool]:
        """Add items, of which the first has that index; one answer for each."""
        self.check_writable()
        if self._refusing():
            return self._refuse_new(items, first)
        answers, new = self.bits.add_many(items, first)
        self._note(new)
        return answers

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
                "filters can be merged only if num_bits, num_hashes, shards, seeds, layout and "
                f"key are the same: this one has {_shape(mine)}, the other {_shape(other)}"
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


class MemoryBloomFilter(Parameters):
    """A Bloom filter in the memory of this process.

    It has the parameters, the seeds and the bits of a `BloomFilter`, so the one can be merged into
    the other. Safe to use from many threads: of any number of concurrent adds of a new item exactly
    one gets True, and once `add` has returned, `exists` is True in every thread. Not shared by
    processes: load a saved file in each.

    Args:
        capacity: Distinct items it is sized for, n >= 1.
        error_rate: False-positive rate at that fill, 0 < p < 1.
        layout: "classic", or "blocked": all bits of an item in one line of the processor's cache.
        seeds: One Murmur3 seed for each hash function (this fixes k); None: one digest for all.
        num_hashes, optimize: As for BloomFilter. To merge it into a filter that exists, make it by
            `like`, which has the same number.
        key: As for BloomFilter; True: a random one, which `save` writes into the file.
        shards: As the filter in Redis that it is to be merged into; None: one
            for each 6 MiB, as that has by itself.
        on_full: "warn" logs when the filter is nearly full and full; "raise" refuses new items
            then with CapacityError.

    Raises:
        ConfigurationError: If a parameter is not usable.

    Cost: num_bits / 8 bytes, taken as they are first set. One item costs 0.3 microseconds with the
    compiled core, one in a batch 0.1; in Python 2 to 5, and 0.2 to 0.3. A compiled `clear` keeps
    all threads waiting while it clears, a second for 10 GB.

    >>> pages = MemoryBloomFilter(100_000)
    >>> pages
    <MemoryBloomFilter: 100000 items at 1e-06, 4679077 bits, 7 hashes, 1 shard>
    >>> pages.add("https://example.org/"), pages.add("https://example.org/")
    (True, False)
    >>> "https://example.org/" in pages, "https://example.org/other" in pages
    (True, False)
    >>> pages.add_many(["a", "b", "a"])
    [True, True, False]
    >>> len(pages)
    3
    """

    def __init__(
        self,
        capacity: int,
        error_rate: float = 1e-6,
        *,
        key: str | bytes | Literal[True] | None = None,
        on_full: OnFullHere = "warn",
        **shape: Unpack[ShapeParameters],
    ) -> None:
        """Make an empty filter."""
        descriptor = Wanted.check(capacity, error_rate, key=key, **shape).describe()
        refuse = refuses(on_full)
        self._core = MemoryCore(descriptor, MemoryBits(descriptor), refuse=refuse)

    @classmethod
    def load(
        cls,
        path: FilePath,
        *,
        mode: Mode = "c",
        key: str | bytes | Literal[True] | None = None,
        on_full: OnFullHere = "warn",
        verify: bool = False,
    ) -> Self:
        """Return the filter that `save` or `export_file` wrote, its file mapped into memory.

        Args:
            path: The file.
            mode: "c": changes stay in this process. "r": adding is refused. "r+": changes go to
                the file, which no other object may have open so meanwhile; the system writes them
                when it likes to, and `flush` at once. The file loses its checksums.
            key: The secret that the filter was made with; a random key is in the file.
            on_full: As the class.
            verify: Whether all of the file is read and compared with its checksums first. Files of
                format 1, and those that were open with mode "r+", have none of their bits.

        The file must stay as long as it is: every method raises FilterLostError for one that was
        cut meanwhile, but one that is cut while a method is at work ends the process (SIGBUS), as
        it does with every mapped file. `save` replaces the file and leaves the mapped one whole;
        `cp` over it does not.

        Raises:
            ConfigurationError: If the file is not whole, no file of a filter, or of a newer format;
                with `verify`, also if its bits were changed.
            FilterMismatchError: If the filter has another key.
            OSError: If it cannot be opened.

        Cost: some pages; what is touched is read from the file then.
        """
        refuse = refuses(on_full)
        if verify:
            memory_file.verify(path)
        descriptor, bits = memory_file.load(path, mode, check_key(key))
        return cls._with(MemoryCore(descriptor, bits, refuse=refuse))

    @classmethod
    def like(cls, other: Parameters, *, on_full: OnFullHere = "warn") -> Self:
        """Return an empty filter in which every item has the same bits as in another one.

        Args:
            other: A filter of any kind; an asyncio one has to be attached.
            on_full: As the class.
        """
        return cls.of(other._descriptor, on_full=on_full)  # noqa: SLF001 - one family

    @classmethod
    def of(
        cls, descriptor: Descriptor, images: Images | None = None, *, on_full: OnFullHere = "warn"
    ) -> Self:
        """Return the filter of a descriptor; what `BloomFilter.to_memory` is made with.

        Args:
            descriptor: Its parameters; the generation is of no account.
            images: One array for each shard, the image of its Redis string, which then belongs to
                the filter (the header is cleared); None: all bits 0.
            on_full: As the class.
        """
        if descriptor.window is not None:
            raise ConfigurationError(
                "a filter in the process is not possible with the window= of the other one"
            )
        if descriptor.slices:
            raise ConfigurationError(
                "a filter that grows (on_full='grow') has no like in the process, which does not"
            )
        for image in images or ():
            image[:HEADER_BYTES] = 0
        bits = MemoryBits(descriptor, images)
        return cls._with(MemoryCore(descriptor, bits, refuse=refuses(on_full)))

    @classmethod
    def _with(cls, core: MemoryCore) -> Self:
        made = cls.__new__(cls)
        made._core = core  # noqa: SLF001 - a second constructor
        return made

    @property
    def _descriptor(self) -> Descriptor:
        return self._core.descriptor

    def add(self, item: str | bytes) -> bool:
        """Add an item.

        Args:
            item: A `str` (its UTF-8 form) or `bytes`.

        Returns:
            True if it is new.

        Raises:
            TypeError: If the item is neither.
            CapacityError: If the filter is full, the item new, and `on_full="raise"`.
            ConfigurationError: If the filter was loaded with mode "r".
        """
        core = self._core
        if core.try_add is not None and (new := core.try_add(item)) is not None:
            return new
        return core.add(encode_item(item))

    def exists(self, item: str | bytes) -> bool:
        """Return whether an item was added (or, at the error rate, looks like it)."""
        core = self._core
        if core.try_exists is not None and (found := core.try_exists(item)) is not None:
            return found
        return core.bits.exists(encode_item(item))

    def __contains__(self, item: str | bytes) -> bool:
        """Return `exists(item)`."""
        return self.exists(item)

    def add_many(self, items: Items) -> list[bool]:
        """Add many items; an item repeated among them is new once.

        Args:
            items: Any iterable; read in chunks of 16,384 items.

        Returns:
            One answer for each item, in order. It differs from that of `add` only where all bits
            of a new item are set by others of the same few thousand: here it is new.

        Raises:
            As `add`. Where answers are known already, the error is a PartialResultError that has
                them as `results`. What `items` raises passes through as it is, and they are lost.
                Use `add_each` for an iterable that may fail.
        """
        return self._core.add_many(items)

    def add_each(
        self, items: Iterable[Item], *, batch_size: int | None = None
    ) -> Iterator[tuple[Item, bool]]:
        """Add items of a stream; yield each with its answer, in order and in bounded memory.

        Args:
            items: Any iterable, endless ones too; read a batch at a time.
            batch_size: Items that are read before they are added, at most; None: 16,384.

        Yields:
            The item and what `add` returns for it, as `add_many` counts it.

        Raises:
            As `add_many`; everything that was answered is yielded first.
        """
        return self._core.add_each(items, batch_size)

    def exists_many(self, items: Items) -> list[bool]:
        """Test many items; one answer for each, in order. Raises as `add_many`."""
        return self._core.exists_many(items)

    def update(self, items: Items | MemoryBloomFilter) -> None:
        """Add many items, or everything that another filter with the same parameters holds.

        Raises:
            ConfigurationError: If the other filter has other parameters.
            As `add_many`; a note of the exception says how many items were added before.
        """
        if isinstance(items, MemoryBloomFilter):
            self._core.merge(items._core)  # noqa: SLF001 - our own class
        else:
            self._core.update(items)

    def __ior__(self, other: MemoryBloomFilter) -> Self:
        """Add everything that the other filter holds, as `update`."""
        if not isinstance(other, MemoryBloomFilter):
            return NotImplemented
        self.update(other)
        return self

    def __or__(self, other: MemoryBloomFilter) -> Self:
        """Return a new filter that holds what either holds."""
        if not isinstance(other, MemoryBloomFilter):
            return NotImplemented
        made = self.copy()
        made.update(other)
        return made

    def intersection_update(self, other: MemoryBloomFilter) -> None:
        """Keep what another filter with the same parameters holds as well.

        Every item that both hold stays. The rate of false positives is at most the lower one of
        both.

        Raises:
            ConfigurationError: If the other filter has other parameters, or this one was loaded
                with mode "r".
        Cost: all bits are read once, without the interpreter's lock between parts.
        """
        self._core.intersect(other._core)

    def __iand__(self, other: MemoryBloomFilter) -> Self:
        """Keep what the other filter holds as well, as `intersection_update`."""
        if not isinstance(other, MemoryBloomFilter):
            return NotImplemented
        self.intersection_update(other)
        return self

    def __and__(self, other: MemoryBloomFilter) -> Self:
        """Return a new filter that holds what both hold."""
        if not isinstance(other, MemoryBloomFilter):
            return NotImplemented
        self._core.check_same_bits(other._descriptor)
        made = self.copy()
        made.intersection_update(other)
        return made

    def jaccard(self, other: MemoryBloomFilter) -> float:
        """Return the estimated share of items in both filters among those in either.

        The counts are estimates (Swamidass, Baldi 2007): |A| + |B| - |A or B| over |A or B|. The
        fuller the filters, the less exact. Two empty filters have 1.0.

        Raises:
            ConfigurationError: If the other filter has other parameters.
        Cost: all bits of both are counted, 4 MB in two milliseconds.

        >>> a, b = MemoryBloomFilter(10_000), MemoryBloomFilter(10_000)
        >>> a.update(f"{n}" for n in range(3000))
        >>> b.update(f"{n}" for n in range(2000, 4000))
        >>> round(a.jaccard(b), 2)
        0.25
        """
        return self._core.jaccard(other._core)

    def copy(self) -> Self:
        """Return a copy in memory, which can be changed also where this filter cannot."""
        bits = MemoryBits(self._descriptor, self._core.bits.copies())
        return self._with(MemoryCore(self._descriptor, bits, refuse=self._core.fill.refuse))

    def clear(self) -> None:
        """Remove everything.

        Raises:
            ConfigurationError: If the filter was loaded with mode "r".
        """
        self._core.clear()

    def count(self) -> int:
        """Return the estimated number of distinct items (Swamidass, Baldi 2007).

        Cost: all bits are counted, 4 MB in a millisecond.
        """
        return self._core.estimate(self._core.bits.count())

    def __len__(self) -> int:
        """Return `count()`; so an empty filter is False."""
        return self.count()

    @property
    def fill_ratio(self) -> float:
        """Set bits among all bits; about one half at capacity. Cost: as `count`."""
        return self._core.bits.count() / self.num_bits

    @property
    def current_error_rate(self) -> float:
        """Chance that an item never added is taken for a seen one, now. Cost: as `count`."""
        return self._descriptor.error_rate_at_fill(self.fill_ratio)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all bitmaps."""
        return sum(image.nbytes for image in self._core.bits.images)

    def info(self) -> FilterInfo:
        """Return all parameters, fill, estimated count, current error rate and memory.

        The name is empty, the generation 0 and the strategy "memory". Cost: as `count`.
        """
        return self._core.info()

    def images(self) -> Images:
        """Return the bitmap of each shard as it is, not a copy.

        Each is an array of bytes, the image of the shard's Redis string: eight bytes of zero where
        the header is there, and bit number o of SETBIT in byte o // 8, the highest bit first.
        """
        self._core.bits.check_file()
        return list(self._core.bits.images)

    def save(self, path: FilePath) -> None:
        """Write the filter to a file, which is there as a whole or not at all.

        What was added before is in it, what other threads add meanwhile may be. A filter that is
        loaded from the same path keeps the old file until it is gone.

        Raises:
            OSError: If the file cannot be written; what was there before is unchanged.
        """
        memory_file.save(path, self._descriptor, self._core.bits)

    def flush(self) -> None:
        """Write the changes of a filter loaded with mode "r+" to the disk now.

        Raises:
            OSError: If they cannot be written.
        """
        self._core.bits.flush()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a file serves that, and may be mapped by several processes."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled; write it by save(path) and read it by "
            f"load(path), or take copy() within the process"
        )

    def __repr__(self) -> str:
        """Return the parameters."""
        return f"<{type(self).__name__}: {self._shape()}>"
