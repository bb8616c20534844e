"""From items to bit offsets: item by item, or many at once in the compiled core. Pure.

The formulas, and why they have these terms, stand in docs/internals/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, cast

from mmh3 import mmh3_x64_128_digest, mmh3_x64_128_utupledigest

from .arrays import np
from .compiled import core
from .errors import ConfigurationError
from .hash_keys import keyed_digest
from .sizing import FIRST_BIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ._speed import Places

    Words = npt.NDArray[np.uint64]
    Indices = npt.NDArray[np.intp]

_HALVES = struct.Struct("<QQ")


def encode_item(item: object) -> bytes:
    """Return the bytes to hash: a `bytes`, or the UTF-8 form of a `str`."""
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        try:
            return str.encode(item)  # a subclass may have another
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"item {item[:80]!r} has a lone surrogate and no UTF-8 form; pass bytes"
            ) from error
    raise TypeError(f"item must be str or bytes, not {type(item).__name__} ({item!r:.80})")


def encode_items(items: Sequence[object], first: int = 0) -> list[bytes]:
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return cast("list[bytes]", [*items])
    if kinds == {str}:
        with suppress(UnicodeEncodeError):
            return list(map(str.encode, cast("Sequence[str]", items)))
    encoded = []
    for index, item in enumerate(items, first):
        try:
            encoded.append(encode_item(item))
        except (TypeError, ConfigurationError) as error:
            raise type(error)(f"items[{index}]: {error}") from None
    return encoded


def check_items(items: object) -> None:
    # Iterating a dict or a DataFrame gives its keys or columns.
    if isinstance(items, (str, bytes, Mapping)) or hasattr(items, "columns"):
        raise TypeError(
            f"items must be an iterable of str or bytes, not one {type(items).__name__}"
        )


def pick(encoded: Sequence[bytes], indices: Sequence[int]) -> list[bytes]:
    return [encoded[index] for index in indices]


class Hasher:
    """Offsets of items in the shards of one filter, from the start of each Redis string.

    Args:
        shard_bits: Bits of one shard, m.
        num_hashes: Offsets for each item, k.
        shards: Number of shards, S.
        seeds: One Murmur3 seed for each hash function, or None for default hashing.
        key: Key of the digests (then there are no seeds); None: Murmur3.
        further: First bit, bits and offsets of each slice of a growing filter behind the first.

    Attributes:
        places: Computes offsets from digests in C; None without the compiled core.
        compiled: The same object if it computes the digests too; None with a key.
        identify: Returns the identity of an item, whatever the seeds.
        hashes: Offsets of an item in each slice; with a window they are the same in all.
    """

    def __init__(
        self,
        shard_bits: int,
        num_hashes: int,
        shards: int = 1,
        seeds: tuple[int, ...] | None = None,
        *,
        key: bytes | None = None,
        further: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.identify = mmh3_x64_128_digest if key is None else keyed_digest(key)
        self._digest = self.identify if seeds is None else partial(_seeded_digest, seeds)
        self.shard_bits = shard_bits
        self.num_hashes = num_hashes
        self.shards = shards
        self.seeds = seeds
        self.hashes = (num_hashes, *(hashes for _, _, hashes in further))
        self.places: Places | None = None
        if core is not None:
            self.places = core.Places(shard_bits, num_hashes, shards, seeds)
        self.compiled = self.places if key is None else None
        self._offsets_of = struct.Struct(f">{num_hashes}I").unpack
        self._slices = [
            (self, FIRST_BIT),
            *((Hasher(bits, hashes, shards, key=key), first) for first, bits, hashes in further),
        ]

    def of_identities(self) -> Hasher:
        """Return one without seeds that takes the identities of items in place of the items."""
        made = copy(self)
        made.identify, made.compiled = bytes, None
        made._digest = bytes  # noqa: SLF001 - its own class
        further = [(part.of_identities(), first) for part, first in self._slices[1:]]
        made._slices = [(made, FIRST_BIT), *further]  # noqa: SLF001
        return made

    def locate(self, data: bytes) -> tuple[int, list[int]]:
        """Return the shard and the k bit offsets of one encoded item.

        >>> Hasher(9592955, 7).locate(b"https://example.org/")
        (0, [141893, 6070917, 4366030, 4620188, 6833392, 1412688, 7543987])
        """
        words = self.words([data])
        return self._shard_of(words), self._offsets(words)

    def _offsets(self, words: bytes) -> list[int]:
        if self.places is not None:
            return list(self._offsets_of(self.places.packed(words, FIRST_BIT)))
        bits = self.shard_bits
        if self.seeds is not None:
            # An item, and the same item with a zero byte at its end, may have the digests of two
            # neighbouring seeds exchanged. Adding `i` gives them different bits.
            halves = struct.unpack(f"{self.num_hashes}Q", words)
            return [(half % bits + i) % bits + FIRST_BIT for i, half in enumerate(halves)]
        h1, h2 = _HALVES.unpack(words)
        x = h1 % bits
        z, y = divmod(h2, bits)
        z %= bits
        offsets = []
        for step in range(1, self.num_hashes + 1):
            offsets.append(x + FIRST_BIT)
            x = (x + y) % bits
            y += z + step
        return offsets

    def shard_of(self, data: bytes) -> int:
        return 0 if self.shards == 1 else self._shard_of(self.words([data]))

    def _shard_of(self, words: bytes) -> int:
        return (int.from_bytes(words[:8], "little") * self.shards) >> 64

    def by_shard(self, digests: Words) -> dict[int, Indices]:
        """Return the indices of the items of each shard, in their order."""
        if self.shards == 1 and len(digests):
            return {0: np.arange(len(digests))}
        # (h1 * S) >> 64 by 32-bit halves
        half, shards = np.uint64(32), np.uint64(self.shards)
        low = (digests[:, 0] & np.uint64(2**32 - 1)) * shards >> half
        numbers = ((digests[:, 0] >> half) * shards + low >> half).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=False))

    def words(self, items: Sequence[bytes]) -> bytes:
        """Return the digests of encoded items: two words of each, or one for each seed."""
        if self.compiled is not None:
            return cast("bytes", self.compiled.digests(list(items)))
        return b"".join(map(self._digest, items))

    def digests(self, items: Sequence[bytes]) -> Words:
        """Return the digests as an array, a row for each item."""
        words = np.frombuffer(self.words(items), np.uint64)
        return words.reshape(-1, 2 if self.seeds is None else self.num_hashes)

    def place(self, digests: Words) -> Words:
        """Return the offsets of items in their shards: n rows of k."""
        if self.places is None:
            offsets = [self._offsets(row.tobytes()) for row in digests]
            return np.array(offsets, np.uint64).reshape(-1, self.num_hashes)
        packed = np.frombuffer(self.places.packed(digests, FIRST_BIT), ">u4")
        return packed.astype(np.uint64).reshape(-1, self.num_hashes)

    def packed(self, items: Sequence[bytes], count: int = 1) -> bytes:
        """Return the offsets of encoded items, all of one shard, four bytes each, big-endian.

        For a filter that grows, an item has offsets in the first `count` slices, the oldest first.

        >>> Hasher(1000, 2, further=[(1192, 4000, 3)]).packed([b"a"], 2).hex(" ", 4)
        '000003e1 000001eb 00000bb1 0000118b 00000bb2'
        """
        slices = self._slices[:count]
        if self.places is None:
            offsets = [
                offset + first - FIRST_BIT
                for item in items
                for hasher, first in slices
                for offset in hasher.locate(item)[1]
            ]
            return struct.pack(f">{len(offsets)}I", *offsets)
        words = self.words(items)
        packed = [cast("Places", hasher.places).packed(words, first) for hasher, first in slices]
        if len(items) <= 1 or len(packed) == 1:
            return b"".join(packed)
        rows = [np.frombuffer(some, np.uint8).reshape(len(items), -1) for some in packed]
        return np.concatenate(rows, axis=1).tobytes()


def _seeded_digest(seeds: Sequence[int], data: bytes) -> bytes:
    halves = [mmh3_x64_128_utupledigest(data, seed)[0] for seed in seeds]
    return struct.pack(f"<{len(seeds)}Q", *halves)
