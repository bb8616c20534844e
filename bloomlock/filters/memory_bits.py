"""The bits of a filter in this process: one array for each shard.

Each array is the image of a shard's Redis string with a header of zeros, so it goes to Redis, and
comes from there, as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bloomlock.arrays import np
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import encode_item, encode_items
from bloomlock.runtime.forks import LockOwner
from bloomlock.sizing import estimate_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.hashing import Hasher

    Bytes = npt.NDArray[np.uint8]
    Flags = npt.NDArray[np.bool_]
    Words = npt.NDArray[np.uint64]

BYTES_PER_COUNT = 2**16
_MASKS = tuple(128 >> place for place in range(8))


class PythonBits(LockOwner):
    """What bloomlock/_speed.c does over images, for filters with a key and without a compiler.

    Setting a bit is reading a byte and writing it, two steps between which another thread may
    run (and NumPy gives up the interpreter's lock by itself), so writers take turns. Readers take
    no lock: no writer ever clears a bit that was set before it began. In C all writers take turns
    by the interpreter's lock. `added` counts what `add` has added; at `limit` it does nothing.
    """

    def __init__(self, hasher: Hasher, images: Sequence[Bytes]) -> None:
        super().__init__()
        self.added = self.limit = 0
        self._hasher = hasher
        self._images = images
        # One byte of a memoryview is read and written in two thirds of the time of an array's.
        self._cells = [image.data for image in images]

    def add(self, item: str | bytes) -> bool | None:
        """Add an item within the limit and return whether it is new; None: nothing was done."""
        if self.added >= self.limit:
            return None
        number, offsets = self._hasher.locate(encode_item(item))
        with self._lock:
            new = _set(self._cells[number], offsets)
            self.added += new
        return new

    def exists(self, item: str | bytes) -> bool:
        number, offsets = self._hasher.locate(encode_item(item))
        cell = self._cells[number]
        for offset in offsets:  # noqa: SIM110 - all() over a generator takes twice the time
            if not cell[offset >> 3] & _MASKS[offset & 7]:
                return False
        return True

    def add_many(self, items: Sequence[bytes]) -> list[bool]:
        answers = []
        for number, offsets in map(self._hasher.locate, items):
            with self._lock:
                answers.append(_set(self._cells[number], offsets))
        return answers

    def exists_many(self, items: Sequence[bytes]) -> list[bool]:
        return list(map(self.exists, items))

    def combine(self, other: PythonBits, _: bool, /) -> None:
        for mine, theirs in zip(self._images, other._images, strict=True):
            with self._lock:
                np.bitwise_or(mine, theirs, out=mine)

    def clear(self) -> None:
        with self._lock:
            for image in self._images:
                image[:] = 0


def _set(cell: memoryview, offsets: list[int]) -> bool:
    new = False
    for offset in offsets:
        place, mask = offset >> 3, _MASKS[offset & 7]
        byte = cell[place]
        if not byte & mask:
            cell[place] = byte | mask
            new = True
    return new


class MemoryBits(LockOwner):
    """The images of all shards, and what tests and sets their bits: _speed.Places or PythonBits.

    No other process adds to them, so of what was new each item is counted.
    """

    def __init__(self, descriptor: Descriptor, images: Sequence[Bytes] | None = None) -> None:
        super().__init__()
        is_empty, size = images is None, descriptor.size
        if images is None:
            length = descriptor.string_bytes()
            images = [np.zeros(length, np.uint8) for _ in range(size.shards)]
        self.descriptor = descriptor
        self.images = list(images)
        hasher = descriptor.hasher()
        self.engine: Any = PythonBits(hasher, self.images)
        if hasher.compiled is not None:
            self.engine = hasher.compiled.over(tuple(self.images))
        # Items beside those that `engine.added` counts.
        self._others = 0 if is_empty else self.estimate(self.count())

    @property
    def items(self) -> int:
        return int(self._others + self.engine.added)

    def exists(self, item: str | bytes) -> bool:
        found = self.engine.exists(item)
        # None: it is neither str nor bytes, or has no UTF-8 form, which is an error here.
        return bool(self.engine.exists(encode_item(item)) if found is None else found)

    def add_many(self, items: Sequence[str | bytes], first: int = 0) -> list[bool]:
        """Set the bits of many items, as if one by one; return for each whether it is new.

        `first` is the index of the first item, for messages.
        """
        answers = self._for_many(self.engine.add_many, items, first)
        with self._lock:
            self._others += sum(answers)
        return answers

    def exists_many(self, items: Sequence[str | bytes], first: int = 0) -> list[bool]:
        return self._for_many(self.engine.exists_many, items, first)

    def _for_many(
        self, step: Callable[[Any], Any], items: Sequence[str | bytes], first: int
    ) -> list[bool]:
        if isinstance(self.engine, PythonBits):
            return cast("list[bool]", step(encode_items(items, first)))
        # Of an item that is neither str nor bytes, or has no UTF-8 form, the encoding is the error.
        digests = self.engine.digests(items) or self.engine.digests(encode_items(items, first))
        return cast("list[bool]", np.frombuffer(step(digests), np.bool_).tolist())

    def merge(self, other: MemoryBits) -> None:
        self.engine.combine(other.engine, False)
        with self._lock:
            self._others = self.estimate(self.count()) - self.engine.added

    def clear(self) -> None:
        with self._lock:
            self.engine.clear()
            self._others = -self.engine.added

    def count(self) -> int:
        """Return how many bits are set."""
        cells = [image.data for image in self.images]
        return sum(
            int.from_bytes(cell[at : at + BYTES_PER_COUNT], "little").bit_count()
            for cell in cells
            for at in range(0, len(cell), BYTES_PER_COUNT)
        )

    def estimate(self, bits_set: int) -> int:
        size = self.descriptor.size
        return round(estimate_count(bits_set, size.num_bits, size.num_hashes))


def check_same_bits(mine: Descriptor, other: Descriptor) -> None:
    if not mine.same_bits(other):
        raise ConfigurationError(
            "filters can be merged only if num_bits, num_hashes, shards, seeds and key "
            f"are the same: this one has {_shape(mine)}, the other {_shape(other)}"
        )


def _shape(descriptor: Descriptor) -> str:
    size, key = descriptor.size, descriptor.key
    # Nothing of the key itself.
    name = "none" if key is None else f"the {key.kind} one of check {key.check[:8]}"
    return f"{size.num_bits}, {size.num_hashes}, {size.shards}, {descriptor.seeds} and {name}"
