r"""What the bytes of a filter's file mean. Pure.

    bloomlock bitmap 1\n              magic and version of this format
    {"capacity": "1000", ...}\n       descriptor and length of the file, as JSON
    6f3b...\n                         SHA-256 of the two lines above, in hexadecimal
    zeros up to 4096 bytes
    image of shard 0                  eight zero bytes, then 16 of state and the bits, as in Redis
    zeros up to the next multiple of 4096
    image of shard 1, and so on; the last is filled up too
    SHA-256 of each 65536 bytes from byte 4096 to here
    SHA-256 of the first 4096 bytes and of these sums, 32 bytes

Of a filter that grows the JSON has how many shards have one slice, two and so on ("3,1").

Of a filter with discarded items the JSON says how many there are, and behind the images are the
tombstones of the shards, one table behind the other:

    24 bytes      how many items the table has
    16 + 8 bytes  the identity of an item, and the epoch (0 without a time window), and so on
    zeros up to the next multiple of 4096, behind the last table

`head -3` shows what a file holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock import native
from bloomlock.descriptor import READY
from bloomlock.errors import BloomlockError, ConfigurationError
from bloomlock.hash_keys import DIGEST_BYTES
from bloomlock.slices import slices_in
from bloomlock.stored_descriptor import FIELDS, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.descriptor import Descriptor

FORMAT = 1
MAGIC = b"bloomlock bitmap "
PAGE = 4096
"""Images start at multiples of this, a page of memory on most machines."""

BLOCK_BYTES = 64 * 1024
"""Bytes that have a checksum of their own."""
SUM_BYTES = 32
RECORD_BYTES = DIGEST_BYTES + 8
"""Bytes of an item in a table, and of the number before the first."""
_SHARDS_BY_SLICES = "shards_by_slices"
_DISCARDED = "discarded"
CHANGED = b"changed in place".ljust(SUM_BYTES)
"""Stands for the last checksum of a file that may have been changed since it was written."""


class Part(NamedTuple):
    """Some bytes of an image, or of a table.

    Attributes:
        image: The number of the shard whose image it is. The tables of the shards, in their order,
            have the numbers behind those.
        start: The first byte of it that they are.
        data: They. Of a table they are whole records.
    """

    image: int
    start: int
    data: bytes | memoryview


class Images(NamedTuple):
    """How long the images of a filter are.

    Attributes:
        lengths: Bytes of an image, by how many slices its shard has; of a filter that does not
            grow all have one.
        shards: How many shards have one slice, two, and so on.
        discarded: How many items the tables have; None: there are none.
    """

    lengths: tuple[int, ...]
    shards: tuple[int, ...]
    discarded: int | None = None

    @classmethod
    def of(cls, descriptor: Descriptor, starts: Iterable[bytes] = ()) -> Images:
        """Return those of a filter.

        Args:
            descriptor: Its parameters.
            starts: The first bytes of all shards; of a filter that does not grow none is needed.
        """
        if descriptor.growth is None:
            return cls((descriptor.string_bytes(),), (descriptor.size.shards,))
        found = Counter(map(slices_in, starts))
        counts = tuple(found[number] for number in range(1, len(descriptor.slices) + 1))
        return cls(tuple(part.end_byte for part in descriptor.slices), counts)

    @property
    def num_images(self) -> int:
        """How many images and tables there are."""
        return sum(self.shards) * (1 if self.discarded is None else 2)

    @property
    def num_bytes(self) -> int:
        """Bytes of all images and tables."""
        pairs = zip(self.lengths, self.shards, strict=True)
        return sum(length * count for length, count in pairs) + self._table_bytes

    @property
    def end(self) -> int:
        """The byte of a file behind them."""
        pairs = zip(self.lengths, self.shards, strict=True)
        images = sum(padded(length) * count for length, count in pairs)
        return PAGE + images + padded(self._table_bytes)

    @property
    def end_of_last(self) -> int:
        """The byte behind the last table, or behind the zeros that follow the last image."""
        return self.end - -self._table_bytes % PAGE

    @property
    def _table_bytes(self) -> int:
        if self.discarded is None:
            return 0
        return RECORD_BYTES * (sum(self.shards) + self.discarded)

    @property
    def most_slices(self) -> int:
        """The most slices that a shard has."""
        return max((number for number, count in enumerate(self.shards, 1) if count), default=1)

    def slices_of(self, start: bytes | memoryview) -> int:
        """Return how many slices the shard has whose image begins with these bytes."""
        return slices_in(start) if len(self.lengths) > 1 else 1

    def is_table(self, image: int) -> bool:
        """Return whether that is the number of a table."""
        return image >= sum(self.shards)

    def is_padded(self, image: int) -> bool:
        """Return whether zeros follow an image or a table."""
        return not self.is_table(image) or image == self.num_images - 1

    def length_of(self, image: int, start: bytes | memoryview) -> int | None:
        """Return the length of an image or a table that begins with these bytes; None: of none."""
        if self.is_table(image):
            return table_bytes(start)
        slices = self.slices_of(start)
        return self.lengths[slices - 1] if slices <= len(self.lengths) else None


def encode_table(records: Sequence[bytes]) -> bytes:
    r"""Return the tombstones of a shard as a file has them.

    >>> encode_table([b"i" * 16 + b"e" * 8])[-26:]
    b'\x00\x01iiiiiiiiiiiiiiiieeeeeeee'
    """
    return len(records).to_bytes(RECORD_BYTES, "big") + b"".join(records)


def table_bytes(head: bytes | memoryview) -> int:
    """Return the length of a table that begins with these bytes."""
    return RECORD_BYTES * (1 + int.from_bytes(head[:RECORD_BYTES], "big"))


class BlockSums:
    """The checksums of a file's blocks, from its bytes in order.

    Attributes:
        table: Those of the blocks that are over.
        place: The byte of the file that comes next.
    """

    def __init__(self) -> None:
        """Start behind the header."""
        self.table = bytearray()
        self.place = PAGE
        self._left = BLOCK_BYTES
        self._hash = hashlib.sha256()

    def take(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        rest = memoryview(data)
        self.place += len(rest)
        while rest:
            some = rest[: self._left]
            self._hash.update(some)
            self._left -= len(some)
            rest = rest[len(some) :]
            if not self._left:
                self.end()

    def end(self) -> None:
        """End the block that is under way."""
        if self._left < BLOCK_BYTES:
            self.table += self._hash.digest()
            self._left, self._hash = BLOCK_BYTES, hashlib.sha256()


def padded(length: int) -> int:
    """Return how many bytes of a file an image takes."""
    return -(-length // PAGE) * PAGE


def file_bytes(images: Images) -> int:
    """Return the length of a file."""
    end = images.end
    return end + (-(-(end - PAGE) // BLOCK_BYTES) + 1) * SUM_BYTES


def encode_header(descriptor: Descriptor, images: Images) -> bytes:
    """Return the first page of a file."""
    fields: dict[str, Any] = encode(descriptor.with_generation(1, READY))
    fields["bytes"] = file_bytes(images)
    if descriptor.growth is not None:
        fields[_SHARDS_BY_SLICES] = ",".join(map(str, images.shards))
    if images.discarded is not None:
        fields[_DISCARDED] = images.discarded
    lines = b"%s%d\n%s\n" % (MAGIC, FORMAT, json.dumps(fields).encode())
    header = b"%s%s\n" % (lines, hashlib.sha256(lines).hexdigest().encode())
    return header.ljust(PAGE, b"\0")


def read_header(name: str, start: bytes, length: int | None) -> tuple[Descriptor, Images]:
    """Return what the first page of a file says, or raise ConfigurationError."""
    magic, _, rest = start.partition(b"\n")
    version = magic.removeprefix(MAGIC)
    if not magic.startswith(MAGIC) or not re.fullmatch(b"[0-9]{1,9}", version):
        raise ConfigurationError(f"{name} is no file of a filter")
    if int(version) != FORMAT:
        raise ConfigurationError(
            f"{name} has format {int(version)}, and this version of bloomlock reads format "
            f"{FORMAT} alone; upgrade bloomlock or export the filter again"
        )
    text, _, rest = rest.partition(b"\n")
    lines = b"%s\n%s\n" % (magic, text)
    if rest[:65] != hashlib.sha256(lines).hexdigest().encode() + b"\n":
        raise ConfigurationError(f"{name} is damaged: its header has another checksum")
    try:
        fields = json.loads(text)
        values = [fields[field].encode() if field in fields else None for field in FIELDS]
        descriptor = decode(name, values)
        if descriptor is None:
            raise ConfigurationError("it has no parameters")
        if descriptor.formulas is native:
            raise ConfigurationError("a native filter has no bits to be kept in a file")
        images = Images.of(descriptor)
        if descriptor.growth is not None:
            images = images._replace(shards=_read_counts(descriptor, fields[_SHARDS_BY_SLICES]))
        if _DISCARDED in fields:
            images = images._replace(discarded=_read_discarded(fields[_DISCARDED]))
    except (
        BloomlockError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,  # of JSON that is nested too deeply
    ) as error:
        raise ConfigurationError(f"{name} has a header of no use ({error!s:.300})") from error
    expected = file_bytes(images)
    if length is not None and length != expected:
        raise ConfigurationError(
            f"{name} is damaged: it has {length} bytes and must have {expected}"
        )
    return descriptor.with_generation(0, READY), images


def _read_counts(descriptor: Descriptor, text: str) -> tuple[int, ...]:
    counts = tuple(map(int, text.split(",")))
    is_whole = sum(counts) == descriptor.size.shards and min(counts) >= 0
    if not is_whole or len(counts) != len(descriptor.slices):
        raise ConfigurationError(f"{_SHARDS_BY_SLICES} are {text!r:.80}")
    return counts


def _read_discarded(number: object) -> int:
    if type(number) is not int or number < 0:
        raise ConfigurationError(f"{_DISCARDED} is {number!r:.80}")
    return number
