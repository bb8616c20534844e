"""The bits of a filter in this process: one array for each shard, one lock for all writers.

Each array is the image of a shard's Redis string with a header of zeros, so it goes to Redis, and
comes from there, as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.arrays import np
from bloomlock.bitmaps import add_rows, rows_missing, set_rows
from bloomlock.compiled import core
from bloomlock.hashing import encode_items
from bloomlock.runtime.forks import LockOwner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor

    from .memory_file import MappedFile

    Bytes = npt.NDArray[np.uint8]
    Flags = npt.NDArray[np.bool_]
    Words = npt.NDArray[np.uint64]

BYTES_PER_COUNT = 2**16
_MASKS = tuple(128 >> place for place in range(8))


class MemoryBits(LockOwner):
    """Tests and sets bits.

    Setting a bit is reading a byte and writing it, two steps between which another thread may
    run (and NumPy gives up the interpreter's lock by itself), so writers take turns. Readers take
    no lock: no writer ever clears a bit that was set before it began. A child of fork has the bits
    as they were at that instant; what another thread of the parent was clearing may be half there.

    With the compiled core all writers are in C, and take turns by the interpreter's lock.

    Attributes:
        images: The arrays.
        writable: Whether bits can be set.
        compiled: What does the same in C, where it can.
        is_mapped: Whether the images lie in a file.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        images: Sequence[Bytes] | None = None,
        file: MappedFile | None = None,
    ) -> None:
        super().__init__()
        if images is None:
            length = descriptor.string_bytes
            images = [np.zeros(length, np.uint8) for _ in range(descriptor.size.shards)]
        self.images = list(images)
        self._hasher = descriptor.hasher()
        self._locate = self._hasher.locate
        # One byte of a memoryview is read and written in two thirds of the time of an array's.
        self._cells = [image.data for image in self.images]
        self._file = file
        self.is_mapped = file is not None
        self.writable = all(image.flags.writeable for image in self.images)
        places, self.compiled = self._hasher.compiled, None
        if core is not None and places is not None:
            self.compiled = core.bits(places, tuple(self.images), self.writable)

    def check_file(self) -> None:
        """Raise FilterLostError if the file the images lie in was cut.

        Cost: a system call, about a microsecond.
        """
        if self._file is not None:
            self._file.check()

    def add(self, data: bytes) -> bool:
        """Set the bits of one encoded item; True if any was 0."""
        if self._file is not None:
            self._file.check()
        if self.compiled is not None:
            return self.compiled.add(data)
        number, offsets = self._locate(data)
        cell = self._cells[number]
        new = False
        with self._lock:
            for offset in offsets:
                place, mask = offset >> 3, _MASKS[offset & 7]
                byte = cell[place]
                if not byte & mask:
                    cell[place] = byte | mask
                    new = True
        return new

    def exists(self, data: bytes) -> bool:
        """Return whether all bits of one encoded item are 1."""
        if self._file is not None:
            self._file.check()
        if self.compiled is not None:
            return bool(self.compiled.exists(data))
        number, offsets = self._locate(data)
        cell = self._cells[number]
        for offset in offsets:  # noqa: SIM110 - all() over a generator takes twice the time
            if not cell[offset >> 3] & _MASKS[offset & 7]:
                return False
        return True

    def add_many(self, items: Sequence[str | bytes], first: int = 0) -> tuple[list[bool], int]:
        """Set the bits of many items; return for each whether it is new, and how many are.

        See `add_rows`; `first` is the index of the first item, for messages.
        """
        self.check_file()
        if self.compiled is not None and (done := self.compiled.add_many(items)) is not None:
            return done
        digests = self._hasher.digests(encode_items(items, first))
        new = np.empty(len(items), np.bool_)
        for number, chosen, rows in self._by_shard(digests):
            with self._lock:
                new[chosen] = add_rows(self.images[number], rows, digests[chosen])
        return new.tolist(), int(new.sum())

    def exists_many(self, items: Sequence[str | bytes], first: int = 0) -> list[bool]:
        """Return for each of many items whether all its bits are 1."""
        self.check_file()
        if self.compiled is not None and (found := self.compiled.exists_many(items)) is not None:
            return found
        digests = self._hasher.digests(encode_items(items, first))
        seen = np.empty(len(items), np.bool_)
        for number, chosen, rows in self._by_shard(digests):
            seen[chosen] = ~rows_missing(self.images[number], rows)
        answers: list[bool] = seen.tolist()
        return answers

    def set_many(self, items: Sequence[str | bytes], first: int = 0) -> None:
        """Set the bits of many items."""
        self.check_file()
        if self.compiled is not None and self.compiled.set_many(items):
            return
        for number, _, rows in self._by_shard(self._hasher.digests(encode_items(items, first))):
            with self._lock:
                set_rows(self.images[number], rows)

    def _by_shard(
        self, digests: Words
    ) -> Iterator[tuple[int, slice | npt.NDArray[np.intp], Words]]:
        shards, rows = self._hasher.place(digests)
        if len(self.images) == 1:
            yield 0, slice(None), rows
            return
        order = np.argsort(shards, kind="stable")
        ends = np.cumsum(np.bincount(shards.astype(np.intp), minlength=len(self.images))).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                chosen = order[start:end]
                yield number, chosen, rows[chosen]

    def merge(self, other: MemoryBits) -> None:
        """Set every bit that is set in the other, which has the same shape."""
        self.check_file()
        other.check_file()
        if self.compiled is not None and other.compiled is not None:
            self.compiled.merge(other.compiled)
            return
        for mine, theirs in zip(self.images, other.images, strict=True):
            with self._lock:
                np.bitwise_or(mine, theirs, out=mine)

    def intersect(self, other: MemoryBits) -> None:
        """Clear every bit that is not set in the other, which has the same shape."""
        self.check_file()
        other.check_file()
        if self.compiled is not None and other.compiled is not None:
            self.compiled.intersect(other.compiled)
            return
        for mine, theirs in zip(self.images, other.images, strict=True):
            with self._lock:
                np.bitwise_and(mine, theirs, out=mine)

    def copies(self) -> list[Bytes]:
        """Return a copy of each image."""
        self.check_file()
        return [image.copy() for image in self.images]

    def clear(self) -> None:
        """Clear every bit."""
        self.check_file()
        if self.compiled is not None:
            self.compiled.clear()
            return
        with self._lock:
            for image in self.images:
                image[:] = 0

    def flush(self) -> None:
        """Write changes to the file the images lie in, if that is where changes go."""
        if self._file is not None:
            self._file.flush()

    def count_either(self, other: MemoryBits) -> int:
        """Return the number of bits that are set here or in the other, which has the same shape."""
        self.check_file()
        other.check_file()
        return sum(
            (
                int.from_bytes(mine[at : at + BYTES_PER_COUNT], "little")
                | int.from_bytes(theirs[at : at + BYTES_PER_COUNT], "little")
            ).bit_count()
            for mine, theirs in zip(self._cells, other._cells, strict=True)
            for at in range(0, len(mine), BYTES_PER_COUNT)
        )

    def count(self, shard: int | None = None, start: int = 0, length: int | None = None) -> int:
        """Return the number of set bits: of all shards, or of `length` bytes of one."""
        if shard is None:
            return sum(self.count(number) for number in range(len(self._cells)))
        self.check_file()
        cell = self._cells[shard]
        stop = len(cell) if length is None else start + length
        return sum(
            int.from_bytes(cell[at : min(at + BYTES_PER_COUNT, stop)], "little").bit_count()
            for at in range(start, stop, BYTES_PER_COUNT)
        )
