"""From items to bit offsets: one scalar path and one batch path that agree. Pure.

Default hashing. One Murmur3 x64 128-bit digest with seed 0 (A. Appleby, 2011) gives two unsigned
64-bit halves h1 (the first eight bytes, little-endian) and h2. With m bits and S shards

    shard = (h1 * S) >> 64
    x = h1 mod m        y = h2 mod m        z = (h2 div m) mod m
    offset_i = (x + i*y + C(i,2)*z + C(i+1,3)) mod m        for i = 0 .. k-1

which is enhanced double hashing (P. C. Dillinger, P. Manolios, "Bloom filters in probabilistic
verification", FMCAD 2004) with a third term. Two terms give m^2 sequences, and n items then
collide whole with probability n/m^2, which is above an error rate of 1e-9 for any filter below
ten million items; three terms give m^3.

With seeds. Let g_i be the first half of the digest with seed_i. Then

    shard = (g_0 * S) >> 64
    offset_i = (g_i mod m + i) mod m

The i is there because Murmur3 lets a short item that ends in a zero byte and the same item without
it exchange the digests of two neighbouring seeds: without it both would have the same bits.

With a key. The digest is not Murmur3's but the 16 bytes of BLAKE2b (RFC 7693) with that key and
that digest size, h1 and h2 its halves, little-endian; the rest is default hashing, in any layout.
Murmur3 with a known seed can be inverted, so a stranger can make an item with the bits of another
one, but not without the key.

The blocked layout has its own places (blocked.py), from the same digest and in the same shard.

m is at most 2^32 and the halves have 64 bits, so the bias of a modulo is below 2^-32.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from numbers import Integral
from struct import Struct
from typing import TYPE_CHECKING, cast, overload

from mmh3 import mmh3_x64_128_digest, mmh3_x64_128_utupledigest

from .arrays import np
from .blocked import BLOCK_BITS, POSITION_SHIFT, SALTS, places_in_blocks
from .compiled import core
from .errors import ConfigurationError
from .sizing import BLOCKED, CLASSIC, HEADER_BITS, MAX_HASHES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]
    Located = Mapping[int, tuple[Sequence[int], Sequence[Sequence[int]]]]


def encode_item(item: object) -> bytes:
    r"""Return the bytes that are hashed: UTF-8 of a `str`, a `bytes` as it is.

    Raises:
        TypeError: For any other type.
        ConfigurationError: For a `str` that has no UTF-8 form (lone surrogates).

    >>> encode_item("é") == encode_item(b"\xc3\xa9")
    True
    """
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"item {item[:80]!r} has a lone surrogate and no UTF-8 form; pass bytes"
            ) from error
    raise TypeError(f"item must be str or bytes, not {type(item).__name__} ({item!r:.80})")


def encode_items(items: Sequence[object], first: int = 0) -> Sequence[bytes]:
    r"""Return the encoded forms of many items, each made when it is asked for.

    Args:
        items: The items.
        first: The index of the first of them, for messages.

    Raises:
        TypeError: As `encode_item`, naming the index.
        ConfigurationError: As `encode_item`, naming the index, now or when it is asked for.

    >>> list(encode_items(["é", b"\xff"]))
    [b'\xc3\xa9', b'\xff']
    """
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return cast("Sequence[bytes]", items)
    if kinds == {str}:
        return EncodedTexts(cast("Sequence[str]", items), first)
    return _encode_each(items, first)


class EncodedTexts(Sequence[bytes]):
    """The encoded forms of texts; some thousands at a time are quicker made than kept and read.

    Args:
        texts: The texts.
        first: The index of the first of them, for messages.
    """

    def __init__(self, texts: Sequence[str], first: int) -> None:
        """Keep the texts."""
        self.texts = texts
        self._first = first

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> EncodedTexts: ...

    def __getitem__(self, index: int | slice) -> bytes | EncodedTexts:
        """Encode one, or return some of them (of a slice without a step)."""
        if isinstance(index, slice):
            start = index.indices(len(self))[0]
            return EncodedTexts(self.texts[index], self._first + start)
        return encode_item(self.texts[index])

    def __iter__(self) -> Iterator[bytes]:
        """Encode all of them."""
        try:
            return iter(list(map(str.encode, self.texts)))
        except UnicodeEncodeError:
            return iter(_encode_each(self.texts, self._first))


def pick(encoded: Sequence[bytes], indices: Sequence[int]) -> list[bytes]:
    """Return some encoded items; of texts the others need not be encoded.

    >>> pick(encode_items(["a", "b", "c"]), [0, 2])
    [b'a', b'c']
    """
    if isinstance(encoded, EncodedTexts):
        texts = encoded.texts
        with contextlib.suppress(UnicodeEncodeError):
            return [texts[index].encode() for index in indices]
        encoded = list(encoded)
    return [encoded[index] for index in indices]


def _encode_each(items: Sequence[object], first: int) -> list[bytes]:
    encoded = []
    for index, item in enumerate(items, first):
        try:
            encoded.append(encode_item(item))
        except (TypeError, ConfigurationError) as error:
            raise type(error)(f"items[{index}]: {error}") from error
    return encoded


DEFAULT_SEED = 0
LAST_IN_BLOCK = BLOCK_BITS - 1

ITEMS_PER_SLICE = 2**12
OFFSETS_PER_SLICE = 2**16
"""Offsets computed at a time: 512 KiB, half of a usual second-level cache."""


DIGEST_BYTES = 16
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64
"""From 128 bits, too many to try them all, to as many as BLAKE2b takes."""

RANDOM_KEY_BYTES = 32
_HALVES = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class HashKey:
    """The key that the offsets of a filter depend on, or what is known of it.

    Attributes:
        check: A keyed hash of nothing in hexadecimal: the same for the same key.
        stored: Whether the key is stored with the filter; else each client brings it.
        secret: The key; None where it was not brought (yet).
    """

    check: str
    stored: bool
    secret: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, secret: bytes, *, stored: bool) -> HashKey:
        """Return the key made of these bytes."""
        check = blake2b(digest_size=DIGEST_BYTES, key=secret, person=b"bloomlock check")
        return cls(check.hexdigest(), stored, secret)

    @property
    def kind(self) -> str:
        """Where it comes from: "random" is stored with the filter, "secret" is brought by users."""
        return "random" if self.stored else "secret"


def check_key(key: object) -> HashKey | None:
    """Return the key of a new filter (True: a random one), or raise ConfigurationError.

    No message holds any of it.
    """
    if key is None:
        return None
    if key is True:
        return HashKey.of(secrets.token_bytes(RANDOM_KEY_BYTES), stored=True)
    allowed = f"{MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes (or a str of as many in UTF-8), True, None"
    if not isinstance(key, (str, bytes)):
        raise ConfigurationError(f"key must be {allowed}, not {type(key).__name__}")
    try:
        data = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise ConfigurationError(f"key must be {allowed}; this str has no UTF-8 form") from None
    if not MIN_KEY_BYTES <= len(data) <= MAX_KEY_BYTES:
        raise ConfigurationError(f"key must be {allowed}, not {len(data)} bytes")
    return HashKey.of(data, stored=False)


def key_difference(stored: HashKey | None, given: HashKey | None, *, opens: bool) -> str | None:
    """Return "key: stored ..., asked ..." if a filter cannot be used with the key that is given.

    Args:
        stored: That of the filter.
        given: What its user brought.
        opens: Whether a random key that is stored may be used without having been asked for.
    """
    if stored is None and given is None:
        return None
    if stored is None or given is None or stored.stored != given.stored:
        if opens and given is None and stored is not None and stored.stored:
            return None
        kinds = ["none" if key is None else f"a {key.kind} one" for key in (stored, given)]
        return f"key: stored {kinds[0]}, asked {kinds[1]}"
    if not stored.stored and stored.check != given.check:
        return "key: stored the check of another one than was given"
    return None


def _keyed_digest(key: bytes) -> Callable[[bytes], bytes]:
    # To copy what has taken in the key costs half of beginning anew for each item.
    fresh = blake2b(digest_size=DIGEST_BYTES, key=key)

    def digest(data: bytes) -> bytes:
        hashing = fresh.copy()
        hashing.update(data)
        return hashing.digest()

    return digest


def check_seeds(seeds: object) -> tuple[int, ...] | None:
    """Return `seeds` as a tuple (None: default hashing), or raise ConfigurationError."""
    if seeds is None:
        return None
    allowed = f"1 to {MAX_HASHES} different whole numbers from 0 to 2^32 - 1, or None"
    if isinstance(seeds, (str, bytes)) or not hasattr(seeds, "__iter__"):
        raise ConfigurationError(f"seeds must be {allowed}, not {seeds!r}")
    checked = tuple(seeds)
    if (
        not 1 <= len(checked) <= MAX_HASHES
        or any(
            isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32
            for seed in checked
        )
        or len(set(checked)) != len(checked)
    ):
        raise ConfigurationError(f"seeds must be {allowed}, not {seeds!r}")
    return tuple(int(seed) for seed in checked)


class Hasher:
    """Offsets of items in the shards of one filter.

    Args:
        shard_bits: Bits of one shard, m.
        num_hashes: Offsets for each item, k.
        shards: Number of shards, S.
        seeds: One Murmur3 seed for each hash function, or None for default hashing.
        layout: "classic", or "blocked" (then m is a multiple of 512, and there are no seeds).
        key: Key of the digests (then there are no seeds); None: Murmur3.

    Attributes:
        compiled: What does the same in C; None where the core is not there, or with a key.

    Offsets returned count from the start of the Redis string: the header's 64 bits are added.
    """

    def __init__(
        self,
        shard_bits: int,
        num_hashes: int,
        shards: int = 1,
        seeds: tuple[int, ...] | None = None,
        layout: str = CLASSIC,
        *,
        key: bytes | None = None,
    ) -> None:
        """Keep the shape."""
        self._digest = mmh3_x64_128_digest if key is None else _keyed_digest(key)
        self._keyed = key is not None
        self.shard_bits = shard_bits
        self.num_hashes = num_hashes
        self.shards = shards
        self.seeds = seeds
        self._blocks = shard_bits // BLOCK_BITS if layout == BLOCKED else 0
        self.places = (
            core.places(shard_bits, num_hashes, shards, seeds, self._blocks > 0) if core else None
        )
        self.compiled = None if self._keyed else self.places
        self._salts = SALTS[:num_hashes]
        self._steps = tuple(range(1, num_hashes + 1))

    def locate(self, data: bytes) -> tuple[int, list[int]]:
        """Return the shard and the k bit offsets of one encoded item.

        Cost: about 0.1 microseconds for each offset (0.02 compiled); 0.6 more with a key.

        >>> Hasher(9592955, 7).locate(b"https://example.org/")
        (0, [141765, 6070789, 4365902, 4620060, 6833264, 1412560, 7543859])
        """
        if self.compiled is not None:
            return self.compiled.locate(data)
        bits = self.shard_bits
        if self.seeds is not None:
            halves = [mmh3_x64_128_utupledigest(data, seed)[0] for seed in self.seeds]
            offsets = [(half % bits + i) % bits + HEADER_BITS for i, half in enumerate(halves)]
            return (halves[0] * self.shards) >> 64, offsets
        if self._keyed:
            h1, h2 = _HALVES.unpack(self._digest(data))
        else:
            h1, h2 = mmh3_x64_128_utupledigest(data, DEFAULT_SEED)
        if self._blocks:
            start = h1 % self._blocks * BLOCK_BITS + HEADER_BITS
            places = [
                start + (h2 * a + b >> POSITION_SHIFT & LAST_IN_BLOCK) for a, b in self._salts
            ]
            return (h1 * self.shards) >> 64, places
        x = h1 % bits
        z, y = divmod(h2, bits)
        z %= bits
        offsets = []
        append = offsets.append
        for step in self._steps:
            append(x + HEADER_BITS)
            x = (x + y) % bits
            y += z + step
        return (h1 * self.shards) >> 64, offsets

    def locate_each(self, items: Sequence[bytes]) -> Located:
        """Return for each shard that has any of some encoded items where they stand, and offsets.

        Cost: as `locate` for each of them.
        """
        if self.shards == 1:
            return {0: (range(len(items)), [self.locate(item)[1] for item in items])}
        located: dict[int, tuple[list[int], list[Sequence[int]]]] = {}
        for index, item in enumerate(items):
            number, offsets = self.locate(item)
            indices, rows = located.setdefault(number, ([], []))
            indices.append(index)
            rows.append(offsets)
        return located

    def identify(self, data: bytes) -> bytes:
        """Return 128 bits that stand for an encoded item, whatever the seeds."""
        return self._digest(data)

    def identities(self, items: Sequence[bytes], digests: Words) -> list[bytes]:
        """Return what `identify` gives for many encoded items, whose digests are known."""
        if self.seeds is not None:
            return list(map(self._digest, items))
        data = np.ascontiguousarray(digests).astype("<u8", copy=False).tobytes()
        return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]

    def relocate(self, identity: bytes, version: bytes) -> list[int]:
        """Return the k bit offsets, in the shard of an item, of one of its versions.

        They are those of an item that consists of the identity and the version.
        """
        return self.locate(identity + version)[1]

    def digests(self, items: Sequence[bytes]) -> Words:
        """Return the digests of many encoded items, which `place` turns into offsets.

        Returns:
            An array of n rows: h1 and h2, or with seeds the first half of each seed's digest.

        Raises:
            ConfigurationError: For a text without UTF-8 form, naming its index.

        Cost: 0.06 microseconds for a text, 0.03 more for each further seed, 0.5 more with a key.
        """
        count = len(items)
        if self.compiled is not None:
            words = np.empty((count, len(self.seeds or (0, 0))), np.uint64)
            plain = items.texts if isinstance(items, EncodedTexts) else items
            if isinstance(plain, (list, tuple)) and self.compiled.digests(plain, words):
                return words
        if self.seeds is None:
            words = np.empty((count, 2), np.uint64)
            for start in range(0, count, ITEMS_PER_SLICE):
                some = items[start : start + ITEMS_PER_SLICE]
                words[start : start + len(some)] = _halves(map(self._digest, some))
            return words
        seeded = (mmh3_x64_128_digest(item, seed) for item in items for seed in self.seeds)
        return np.ascontiguousarray(_halves(seeded)[:, 0]).reshape(count, len(self.seeds))

    def place(self, digests: Words) -> tuple[Words, Words]:
        """Return the shards and the offsets of many items, the same bits as `locate`.

        Args:
            digests: What `digests` gave for n items.

        Returns:
            An array of n shard numbers and an array of n rows of k offsets.
        """
        if self.places is not None:
            count = len(digests)
            shards = np.empty(count, np.uint64)
            columns = np.empty((self.num_hashes, count), np.uint64)
            self.places.place(count, np.ascontiguousarray(digests), shards, columns)
            return shards, columns.T
        if self._blocks:
            offsets = places_in_blocks(digests, self._blocks, self.num_hashes)
        else:
            offsets = self._seeded(digests) if self.seeds else self._enhanced(digests)
        offsets += np.uint64(HEADER_BITS)
        return self._shards_of(digests[:, 0]), offsets

    def _shards_of(self, first: Words) -> Words:
        if self.shards == 1:
            return np.zeros(len(first), np.uint64)
        # (h1 * S) >> 64 by 32-bit halves: h1 * S itself has no room in 64 bits.
        count, low = np.uint64(self.shards), first & np.uint64(0xFFFFFFFF)
        high = (first >> np.uint64(32)) * count + ((low * count) >> np.uint64(32))
        return high >> np.uint64(32)

    def _enhanced(self, digests: Words) -> Words:
        bits = np.uint64(self.shard_bits)
        i, pairs, triples = _terms(self.num_hashes)
        # Column by column, so that a loop over the offsets has long runs in memory, and
        # in slices that stay in the cache.
        columns = np.empty((self.num_hashes, len(digests)), np.uint64)
        step = OFFSETS_PER_SLICE // self.num_hashes
        for start in range(0, len(digests), step):
            h1, h2 = digests[start : start + step].T
            x, y, z = (_modulo(h, bits) for h in (h1, h2, h2 // bits))
            out = columns[:, start : start + step]
            np.multiply(i, y, out=out)
            out += x
            out += pairs * z
            out += triples
            # No overflow: m < 2^32 and i < 2^6, so the sum stays below 2^45.
            out[:] = _modulo(out, bits)
        return columns.T

    def _seeded(self, digests: Words) -> Words:
        bits = np.uint64(self.shard_bits)
        places = _modulo(digests, bits)
        places += np.arange(self.num_hashes, dtype=np.uint64)
        return _modulo(places, bits)


class Unplaced(Hasher):
    """What stands in for a hasher where the server hashes the items itself (BF.*).

    It decides on the shard, as any other, and a row is the item and not its offsets.
    """

    def __init__(self, shard_bits: int, num_hashes: int, shards: int = 1) -> None:
        """Keep the shape."""
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
        halves = _halves(mmh3_x64_128_digest(item) for item in digests.tolist())
        return self._shards_of(np.ascontiguousarray(halves[:, 0])), digests


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
        """Keep the shapes."""
        _, bits, num_hashes = slices[0]
        super().__init__(bits, num_hashes, shards, key=key)
        self.compiled = None
        self._parts = [
            (Hasher(bits, num_hashes, shards, key=key), first - HEADER_BITS)
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


@cache
def _terms(num_hashes: int) -> tuple[Words, Words, Words]:
    """Return i, C(i, 2) and C(i + 1, 3) for each i below k."""
    i = np.arange(num_hashes, dtype=np.uint64)[:, None]
    pairs = i * (i - (i > 0)) // np.uint64(2)
    return i, pairs, (i + np.uint64(1)) * pairs // np.uint64(3)


def _modulo(words: Words, divisor: np.uint64) -> Words:
    # NumPy divides by one number with vector instructions, but has none for the remainder.
    remainder: Words = words - words // divisor * divisor
    return remainder


def _halves(digests: Iterable[bytes]) -> Words:
    # The digest is two little-endian words on every machine; the result has the machine's order.
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
