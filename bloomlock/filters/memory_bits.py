"""The bits of a filter in this process, tested and set in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.arrays import np
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import encode_item
from bloomlock.runtime.forks import LockOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.hashing import Hasher

    Bytes = npt.NDArray[np.uint8]
    Flags = npt.NDArray[np.bool_]
    Words = npt.NDArray[np.uint64]

_MASKS = tuple(128 >> place for place in range(8))


class PythonBits(LockOwner):
    """Bits of images as in bloomlock/_speed.c, for filters with a key and without a compiler.

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

    def combine(self, other: PythonBits, /) -> None:
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
