"""Hashers that decide on the shard of an item, and leave its bits to others. Pure.

Where the server hashes the items itself the bits are its own. In a filter that grows they follow
from the digest and from how many slices the shard has, which only the server knows for certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mmh3 import mmh3_x64_128_digest, mmh3_x64_128_utupledigest

from .arrays import np
from .hashing import DEFAULT_SEED, Hasher, halves
from .sizing import FIRST_BIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .hashing import Located, Words


class Unplaced(Hasher):
    """What stands in for a hasher where the server hashes the items itself (BF.*).

    It decides on the shard, as any other, and a row is the item and not its offsets.
    """

    def __init__(self, shard_bits: int, num_hashes: int, shards: int = 1) -> None:
        super().__init__(shard_bits, num_hashes, shards)
        self.compiled = None

    def locate(self, data: bytes) -> tuple[int, list[int]]:
        """Return the shard and the item.

        >>> Unplaced(1000, 7).locate(b"a")
        (0, b'a')
        """
        if self.shards == 1:
            return 0, cast("list[int]", data)
        h1, _ = mmh3_x64_128_utupledigest(data, DEFAULT_SEED)
        return (h1 * self.shards) >> 64, cast("list[int]", data)

    def locate_each(self, items: Sequence[bytes]) -> Located:
        """Return for each shard where its items stand, and the items."""
        if self.shards == 1:
            return {0: (range(len(items)), cast("Sequence[Sequence[int]]", items))}
        return super().locate_each(items)

    def digests(self, items: Sequence[bytes]) -> Words:
        """Return the items as an array of objects."""
        rows = np.empty(len(items), object)
        rows[:] = list(items)
        return cast("Words", rows)

    def place(self, digests: Words) -> tuple[Words, Words]:
        """Return the shards of many items, and the items."""
        if self.shards == 1:
            return np.zeros(len(digests), np.uint64), digests
        words = halves(mmh3_x64_128_digest(item) for item in digests.tolist())
        return self._shards_of(np.ascontiguousarray(words[:, 0])), digests


class Chained(Hasher):
    """Places items in the slices of a filter that grows, each with bits and hash functions its own.

    It decides on the shard, as any other. A row is the item, and many rows are the digests; where
    their bits are follows from them and from how many slices the shard has.

    Args:
        slices: First bit in the string, bits of a shard and hash functions of each.
        shards: Number of shards, S.
        key: As for Hasher.
    """

    def __init__(
        self, slices: Sequence[tuple[int, int, int]], shards: int = 1, *, key: bytes | None = None
    ) -> None:
        _, bits, num_hashes = slices[0]
        super().__init__(bits, num_hashes, shards, key=key)
        self.compiled = None
        self._parts = [
            (Hasher(bits, num_hashes, shards, key=key), first - FIRST_BIT)
            for first, bits, num_hashes in slices
        ]
        self.hashes = tuple(num_hashes for _, _, num_hashes in slices)
        self.digits = tuple(len(str(first + bits - 1)) for first, bits, _ in slices)

    def locate(self, data: bytes) -> tuple[int, list[int]]:
        """Return the shard and the item.

        >>> Chained([(64, 1000, 2), (1064, 4000, 3)]).locate(b"a")
        (0, b'a')
        """
        if self.shards == 1:
            return 0, cast("list[int]", data)
        return self._parts[0][0].locate(data)[0], cast("list[int]", data)

    def locate_each(self, items: Sequence[bytes]) -> Located:
        """Return for each shard where its items stand, and the items."""
        if self.shards == 1:
            return {0: (range(len(items)), cast("Sequence[Sequence[int]]", items))}
        return super().locate_each(items)

    def place(self, digests: Words) -> tuple[Words, Words]:
        """Return the shards of many items, and the digests."""
        return self._shards_of(digests[:, 0]), digests

    def relocate(self, identity: bytes, version: bytes) -> list[int]:
        """Return what stands for a version of an item, as `locate` returns the item."""
        return cast("list[int]", identity + version)

    def relocated_row(self, identity: bytes, version: bytes) -> Words:
        """Return the digest of a version of an item."""
        return cast("Words", self.digests([identity + version])[0])

    def offsets(self, data: bytes, count: int) -> list[int]:
        """Return the bit offsets of one encoded item in the first slices, the oldest first.

        >>> Chained([(64, 1000, 2), (1064, 4000, 3)]).offsets(b"a", 2)
        [865, 363, 2865, 4363, 2866]
        """
        found: list[int] = []
        for hasher, shift in self._parts[:count]:
            _, offsets = hasher.locate(data)
            found += [offset + shift for offset in offsets] if shift else offsets
        return found

    def rows(self, digests: Words, count: int) -> Words:
        """Return the same offsets for the digests of many items, as rows of an array."""
        parts = []
        for hasher, shift in self._parts[:count]:
            _, offsets = hasher.place(digests)
            parts.append(offsets + np.uint64(shift))
        return np.concatenate(parts, axis=1)
