"""MemoryBloomFilter: the same filter in this process, bit for bit, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from bloomlock.arrays import np
from bloomlock.errors import CapacityError
from bloomlock.hash_keys import check_key
from bloomlock.hashing import check_items, encode_item, encode_items
from bloomlock.runtime.forks import LockOwner
from bloomlock.sizing import estimate_count
from bloomlock.spec import RequestedSpec

from . import files
from .batches import check_batch_size, fail_after, fail_after_adding, take_chunks
from .fill import FillWatch
from .generation import Counted
from .inspection import FilterInfo, Parameters
from .memory_bits import PythonBits, check_same_bits
from .options import OnFullHere, choice
from .support import IN_PROCESS, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal, Self

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.sizing import Optimize

    from .files import FilePath

    Images = list[npt.NDArray[np.uint8]]
    Items = Iterable[str | bytes]

ITEMS_PER_CHUNK = 2**14
"""Items taken from an iterable at a time: some megabytes while their bits are worked on."""

BYTES_PER_COUNT = 2**16
Item = TypeVar("Item", bound=str | bytes)


class MemoryBloomFilter(Parameters, LockOwner):
    """A Bloom filter in the memory of this process, with the bits of a `BloomFilter`.

    Safe to use from many threads: of any number of concurrent adds of a new item exactly one gets
    True. Not shared by processes: load a saved file in each.

    Args:
        capacity, error_rate, seeds, num_hashes, optimize, shards: As for BloomFilter. To merge it
            into a filter that exists, make it by `like`.
        key: As for BloomFilter; True: a random one, which `save` writes into the file.
        on_full: "warn" logs when the filter is nearly full and full; "raise" refuses new items
            then with CapacityError.

    Raises:
        ConfigurationError: If a parameter is not usable.

    Cost: num_bits / 8 bytes, taken as they are first set. One item costs about 0.5 microseconds
    with the compiled core, one in a batch 0.15; in Python, or with a key, 6 to 9.

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
        seeds: Iterable[int] | None = None,
        num_hashes: int | None = None,
        optimize: Optimize | None = None,
        shards: int | None = None,
        on_full: OnFullHere = "warn",
    ) -> None:
        """Make an empty filter."""
        descriptor = RequestedSpec.check(
            capacity,
            error_rate,
            seeds=seeds,
            shards=shards,
            key=key,
            num_hashes=num_hashes,
            optimize=optimize,
        ).describe()
        self._hold(descriptor, None, on_full)

    @classmethod
    def load(
        cls,
        path: FilePath,
        *,
        key: str | bytes | Literal[True] | None = None,
        on_full: OnFullHere = "warn",
    ) -> Self:
        """Return the filter that `save` or `export_file` wrote.

        A key is the secret that the filter was made with; a random one is in the file.

        Raises:
            ConfigurationError: If the file is damaged, no file of a filter, or of another format,
                or its filter has a time window, grows or has discarded items.
            FilterMismatchError: If the filter has another key.
            OSError: If it cannot be opened.

        Cost: the file is read once, and all its checksums are compared.
        """
        return cls.of(*files.load_images(path, check_key(key)), on_full=on_full)

    @classmethod
    def like(cls, other: Parameters, *, on_full: OnFullHere = "warn") -> Self:
        """Return an empty filter in which every item has the same bits as in another one.

        That may be of any kind; one of asyncio has to be attached.
        """
        return cls.of(other._descriptor, on_full=on_full)  # noqa: SLF001 - one family

    @classmethod
    def of(
        cls, descriptor: Descriptor, images: Images | None = None, *, on_full: OnFullHere = "warn"
    ) -> Self:
        """Return the filter of a descriptor; what `BloomFilter.to_memory` is made with.

        `images`: one array for each shard, as by `images()`, which then belongs to the filter.
        """
        check_support(IN_PROCESS, None, descriptor)
        made = cls.__new__(cls)
        made._hold(descriptor, images, on_full)  # noqa: SLF001 - a second constructor
        return made

    def _hold(self, descriptor: Descriptor, images: Images | None, on_full: OnFullHere) -> None:
        LockOwner.__init__(self)
        self._descriptor, self._on_full = descriptor, on_full
        refuse = choice("on_full", on_full, OnFullHere) == "raise"
        self._fill = FillWatch("(in memory)", refuse=refuse)
        size, hasher = descriptor.string_bytes(), descriptor.hasher()
        # Each is the image of a shard's Redis string with a header of zeros.
        self._images = images or [np.zeros(size, np.uint8) for _ in range(self.shards)]
        self._engine: Any = PythonBits(hasher, self._images)
        if hasher.compiled is not None:
            self._engine = hasher.compiled.over(tuple(self._images))
        # Most calls are one call of the engine.
        self._add: Callable[[str | bytes], bool | None] = self._engine.add
        self._exists: Callable[[str | bytes], bool | None] = self._engine.exists
        # Items beside those that `engine.added` counts. No other process adds, so what is new is
        # counted, and only what was there before is estimated.
        self._others = self.count() if images else 0
        self._look()

    def add(self, item: str | bytes) -> bool:
        """Add an item; return True if it is new.

        Raises:
            TypeError: If the item is neither str nor bytes.
            CapacityError: If the filter is full, the item new, and `on_full="raise"`.
        """
        new = self._add(item)
        return self._add_chunk([encode_item(item)])[0] if new is None else new

    def exists(self, item: str | bytes) -> bool:
        """Return whether an item was added (or, at the error rate, looks like it)."""
        found = self._exists(item)
        # None: it is neither str nor bytes, or has no UTF-8 form, which is an error here.
        return bool(self._engine.exists(encode_item(item))) if found is None else found

    def __contains__(self, item: str | bytes) -> bool:
        """Return `exists(item)`."""
        return self.exists(item)

    def add_many(self, items: Items) -> list[bool]:
        """Add many items; one answer for each, in order, as `add` one by one gives it.

        `items` is read 16,384 at a time. Raises as `BloomFilter.add_many`.
        """
        return self._in_chunks(items, self._add_chunk)

    def add_each(
        self, items: Iterable[Item], *, batch_size: int | None = None
    ) -> Iterator[tuple[Item, bool]]:
        """Add items of a stream; yield each with its answer, in order and one at a time.

        `batch_size` is as for `BloomFilter.add_each`, and of no account here. Raises as `add`.
        """
        check_items(items)
        check_batch_size(batch_size)
        return ((item, self.add(item)) for item in items)

    def exists_many(self, items: Items) -> list[bool]:
        """Test many items; one answer for each, in order. Raises as `add_many`."""
        return self._in_chunks(items, self._exists_chunk)

    def update(self, items: Items | MemoryBloomFilter) -> None:
        """Add many items, or everything that another filter with the same parameters holds.

        Raises:
            ConfigurationError: If the other filter has other parameters.
            As `add_many`; a note of the exception says how many items were added before.
        """
        if isinstance(items, MemoryBloomFilter):
            check_same_bits(self._descriptor, items._descriptor)  # noqa: SLF001 - our own class
            if self._fill.refusing:
                raise self._full()
            self._engine.combine(items._engine)  # noqa: SLF001 - our own class
            with self._lock:
                self._others = self.count() - self._engine.added
            self._look()
            return
        added = 0
        for taken in self._chunks(items, finish=True):
            try:
                self._add_chunk(taken, added)
            except Exception as error:  # noqa: BLE001 - raised again
                fail_after_adding(added, error)
            added += len(taken)

    def copy(self) -> Self:
        """Return a copy."""
        images = [image.copy() for image in self.images()]
        return self.of(self._descriptor, images, on_full=self._on_full)

    def clear(self) -> None:
        """Remove everything."""
        with self._lock:
            self._engine.clear()
            self._others = -self._engine.added
        self._fill = FillWatch("(in memory)", refuse=self._fill.refuse)
        self._look()

    def count(self) -> int:
        """Return the estimated number of distinct items; 4 MB are counted in a millisecond."""
        return self._counted().items

    def __len__(self) -> int:
        """Return `count()`; so an empty filter is False."""
        return self.count()

    def info(self) -> FilterInfo:
        """Return all that is known; the name is empty, the generation 0, the strategy "memory"."""
        # A filter in the process has no generation.
        descriptor = self._descriptor.with_generation(0)
        memory_bytes = sum(image.nbytes for image in self._images)
        return FilterInfo.of(descriptor, self._counted(), "", "memory", memory_bytes)

    def images(self) -> Images:
        """Return the bitmap of each shard as it is, not a copy.

        Each is an array of bytes, the image of the shard's Redis string with a header of zeros.
        """
        return list(self._images)

    def save(self, path: FilePath) -> None:
        """Write the filter to a file, which is there as a whole or not at all.

        Raises:
            OSError: If the file cannot be written; what was there before is unchanged.
        """
        files.save_images(path, self._descriptor, self.images())

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a file serves that."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled; write it by save(path) and read it by "
            f"load(path), or take copy() within the process"
        )

    def __repr__(self) -> str:
        """Return the parameters."""
        return f"<{type(self).__name__}: {self._shape()}>"

    def _counted(self) -> Counted:
        bits_set = sum(
            int.from_bytes(image.data[at : at + BYTES_PER_COUNT], "little").bit_count()
            for image in self._images
            for at in range(0, len(image), BYTES_PER_COUNT)
        )
        items = round(estimate_count(bits_set, self.num_bits, self.num_hashes))
        return Counted(items, bits_set)

    def _look(self) -> None:
        """Say so if there are many items, and let the engine add all but the last before a look."""
        added = self._engine.added
        self._fill.judge(self.capacity, self._others + added)
        self._engine.limit = added + max(0, self._fill.until_look - 1)

    def _full(self, known: Sequence[bool] = ()) -> CapacityError:
        return CapacityError(
            f"this filter is full: {self._fill.why_refusing(self._descriptor)}", known
        )

    def _add_chunk(self, items: Sequence[str | bytes], first: int = 0) -> list[bool]:
        """Add items, of which the first has that index; one answer for each."""
        if self._fill.refusing:
            seen = self._exists_chunk(items, first)
            if not all(seen):
                raise self._full([False] * seen.index(False))
            return [False] * len(items)
        answers = self._for_many(self._engine.add_many, items, first)
        with self._lock:
            self._others += sum(answers)
        self._look()
        return answers

    def _exists_chunk(self, items: Sequence[str | bytes], first: int) -> list[bool]:
        return self._for_many(self._engine.exists_many, items, first)

    def _for_many(
        self, step: Callable[[Any], Any], items: Sequence[str | bytes], first: int
    ) -> list[bool]:
        engine = self._engine
        if isinstance(engine, PythonBits):
            return cast("list[bool]", step(encode_items(items, first)))
        # Of an item that is neither str nor bytes, or has no UTF-8 form, the encoding is the error.
        digests = engine.digests(items) or engine.digests(encode_items(items, first))
        return cast("list[bool]", np.frombuffer(step(digests), np.bool_).tolist())

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

    def _chunks(self, items: Iterable[Any], *, finish: bool = False) -> Iterator[Sequence[Any]]:
        check_items(items)

        def size_of() -> int:
            if self._fill.refuse and not self._fill.refusing:
                return min(ITEMS_PER_CHUNK, max(1, self._fill.until_look))
            return ITEMS_PER_CHUNK

        return take_chunks(iter(items), size_of, finish=finish)
