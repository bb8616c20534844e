r"""The file of a filter: written as a whole, read by mapping it into memory, or part by part.

    bloomlock bitmap 2\n              magic and version of this format
    {"capacity": "1000", ...}\n       descriptor and length of the file, as JSON
    6f3b...\n                         SHA-256 of the two lines above, in hexadecimal
    zeros up to 4096 bytes
    image of shard 0                  eight zero bytes, then the bits as in Redis
    zeros up to the next multiple of 4096
    image of shard 1, and so on; the last is filled up too
    SHA-256 of each 65536 bytes from byte 4096 to here
    SHA-256 of the first 4096 bytes and of these sums, 32 bytes

Format 1 ends after the images. `head -3` shows what a file holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from bloomlock.descriptor import READY
from bloomlock.errors import BloomlockError, ConfigurationError
from bloomlock.stored_descriptor import CLEARED, FIELDS, decode, encode

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor

    FilePath = str | os.PathLike[str]

FORMAT = 2
MAGIC = b"bloomlock bitmap "
PAGE = 4096
"""Images start at multiples of this, a page of memory on most machines."""

BLOCK_BYTES = 64 * 1024
"""Bytes that have a checksum of their own."""
SUM_BYTES = 32
PART_BYTES = 2 * 1024 * 1024
CHANGED = b"changed in place".ljust(SUM_BYTES)
"""Stands for the last checksum of a file that may have been changed since it was written."""


class Part(NamedTuple):
    """Some bytes of a shard.

    Attributes:
        shard: Its number.
        start: The first byte of its string that they are.
        data: They.
    """

    shard: int
    start: int
    data: bytes | memoryview


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


class FileWriter:
    """Writes a file part by part.

    It is written beside its place and renamed at the end, so that it is there as a whole or not. An
    open file, such as a pipe, is written as it is.

    Args:
        target: The path, or a file that is open for bytes.
        descriptor: What the file holds.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, target: FilePath | BinaryIO, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        self._image = descriptor.string_bytes
        self._sums = BlockSums()
        self._head = _header(descriptor)
        self._target = self._beside = None
        if isinstance(target, (str, os.PathLike)):
            self._target = Path(target).resolve()  # a link stays one
            # Another name for every writer: two that write at once each leave a whole file.
            suffix = f"{os.getpid()}.{os.urandom(4).hex()}"
            self._beside = self._target.with_name(f".{self._target.name}.{suffix}")
            self._file: BinaryIO = self._beside.open("xb")
        else:
            self._file = target
        try:
            self._file.write(self._head)
        except BaseException:
            self.discard()
            raise

    def write(self, part: Part) -> None:
        """Write the next part; parts come in order, without gaps."""
        self._put(part.data)
        if part.start + len(part.data) == self._image:
            self._put(bytes(-self._image % PAGE))

    def finish(self) -> None:
        """Write the checksums, and give the file its name."""
        self._sums.end()
        table = bytes(self._sums.table)
        self._file.write(table + hashlib.sha256(self._head + table).digest())
        self._file.flush()
        if self._target is None or self._beside is None:
            return
        os.fsync(self._file.fileno())
        self._file.close()
        self._beside.replace(self._target)
        folder = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else the rename may be lost with the machine's power
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Leave no file, after an error."""
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)
            with suppress(OSError):  # what is not written yet is of no use
                self._file.close()

    def _put(self, data: bytes | memoryview) -> None:
        self._sums.take(data)
        self._file.write(data)


class FileReader:
    """Reads a file part by part, and compares its checksums.

    Where the file can be sought each block is compared when it was read, else at the end.

    Args:
        source: The path, or a file that is open for bytes.

    Attributes:
        name: What it is called in messages.
        descriptor: What the file holds; of a secret key the check alone.
        has_sums: Whether the file has checksums of its bits. Those of a pipe are known at the end.

    Raises:
        ConfigurationError: If it is no whole file of this format or an earlier one.
        OSError: If it cannot be read.
    """

    def __init__(self, source: FilePath | BinaryIO) -> None:
        self._owns = isinstance(source, (str, os.PathLike))
        if isinstance(source, (str, os.PathLike)):
            self.name = repr(os.fspath(source))
            self._file: BinaryIO = Path(source).open("rb")  # noqa: SIM115 - closed by close()
        else:
            self.name = "the file that was given"
            self._file = source
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._sums = BlockSums()
        self._table: bytes | None = None
        self._shard = 0
        length = None
        with suppress(OSError):  # of what cannot be sought the length is known at the end
            if self._file.seekable():
                start = self._file.tell()
                length = self._file.seek(0, os.SEEK_END) - start
                self._file.seek(start)
        self._is_whole = length is not None
        self._head = self._read(PAGE)
        self.descriptor, self._version = read_header(self.name, self._head, length)
        self.has_sums = self._version > 1
        self._image = self.descriptor.string_bytes
        self._end = images_end(self.descriptor)
        if length is not None and self.has_sums:
            self._file.seek(start + self._end)
            self._take_table()
            self._file.seek(start + PAGE)

    def read(self) -> Part | None:
        """Return the next part; None after the last, when all of the file is known to be whole."""
        if self._shard == self.descriptor.size.shards:
            self._end_reading()
            return None
        first = PAGE + self._shard * padded(self._image)
        start = self._sums.place - first
        data = self._take(min(PART_BYTES, self._image - start))
        part = Part(self._shard, start, data)
        if start + len(data) == self._image:
            self._take(-self._image % PAGE)
            self._shard += 1
        return part

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owns:
            self._file.close()

    def _take(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise ConfigurationError(
                f"{self.name} is damaged: it was cut at byte {self._sums.place + len(data)} of "
                f"{file_bytes(self.descriptor, self._version)}"
            )
        before = len(self._sums.table)
        self._sums.take(data)
        self._compare(before)
        return data

    def _read(self, size: int) -> bytes:
        """Return `size` bytes, or less where the file ends; a pipe gives it in pieces."""
        data = self._file.read(size)
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data

    def _end_reading(self) -> None:
        before = len(self._sums.table)
        self._sums.end()
        self._compare(before)
        if self._is_whole:
            return
        if self.has_sums:
            self._take_table()
            self._compare(0)
        if self._read(1):
            raise ConfigurationError(
                f"{self.name} is damaged: it has more than its "
                f"{file_bytes(self.descriptor, self._version)} bytes"
            )

    def _take_table(self) -> None:
        size = file_bytes(self.descriptor, self._version) - self._end
        found = self._read(size)
        if len(found) < size:
            raise ConfigurationError(
                f"{self.name} is damaged: it was cut at byte {self._end + len(found)} of "
                f"{self._end + size}"
            )
        table, seal = found[:-SUM_BYTES], found[-SUM_BYTES:]
        if seal == CHANGED:
            self.has_sums = False
        elif seal != hashlib.sha256(self._head + table).digest():
            raise ConfigurationError(
                f"{self.name} is damaged: its first {PAGE} bytes, or the checksums from byte "
                f"{self._end} on, were changed"
            )
        else:
            self._table = table

    def _compare(self, first: int) -> None:
        """Compare the checksums from byte `first` of the table on."""
        if self._table is None:
            return
        found = self._sums.table
        for at in range(first, len(found), SUM_BYTES):
            if found[at : at + SUM_BYTES] != self._table[at : at + SUM_BYTES]:
                start = PAGE + at // SUM_BYTES * BLOCK_BYTES
                stop = min(start + BLOCK_BYTES, self._end)
                shard = (start - PAGE) // padded(self._image)
                raise ConfigurationError(
                    f"{self.name} is damaged: the bytes {start} to {stop - 1}, in shard {shard}, "
                    "have another checksum"
                )


def padded(length: int) -> int:
    """Return how many bytes of a file an image takes."""
    return -(-length // PAGE) * PAGE


def images_end(descriptor: Descriptor) -> int:
    """Return the byte of a file behind the images."""
    return PAGE + descriptor.size.shards * padded(descriptor.string_bytes)


def file_bytes(descriptor: Descriptor, version: int = FORMAT) -> int:
    """Return the length of a file."""
    end = images_end(descriptor)
    return end if version == 1 else end + (-(-(end - PAGE) // BLOCK_BYTES) + 1) * SUM_BYTES


def _header(descriptor: Descriptor) -> bytes:
    fields: dict[str, Any] = encode(descriptor.with_generation(1, READY))
    fields["bytes"] = file_bytes(descriptor)
    lines = b"%s%d\n%s\n" % (MAGIC, FORMAT, json.dumps(fields).encode())
    header = b"%s%s\n" % (lines, hashlib.sha256(lines).hexdigest().encode())
    return header.ljust(PAGE, b"\0")


def read_header(name: str, start: bytes, length: int | None) -> tuple[Descriptor, int]:
    """Return descriptor and version from the first page of a file, or raise ConfigurationError."""
    magic, _, rest = start.partition(b"\n")
    version = magic.removeprefix(MAGIC)
    if not magic.startswith(MAGIC) or not re.fullmatch(b"[0-9]{1,9}", version):
        raise ConfigurationError(f"{name} is no file of a MemoryBloomFilter")
    if int(version) > FORMAT:
        raise ConfigurationError(
            f"{name} has format {int(version)}, and this version of bloomlock reads "
            f"formats up to {FORMAT}; upgrade bloomlock"
        )
    text, _, rest = rest.partition(b"\n")
    lines = b"%s\n%s\n" % (magic, text)
    if rest[:65] != hashlib.sha256(lines).hexdigest().encode() + b"\n":
        raise ConfigurationError(f"{name} is damaged: its header has another checksum")
    try:
        fields = json.loads(text)
        # Whether its generation began with a clear is of no account in a file, and not written.
        there = [field in fields and field != CLEARED for field in FIELDS]
        values = [
            fields[field].encode() if is_there else None
            for field, is_there in zip(FIELDS, there, strict=True)
        ]
        descriptor = decode(name, values)
        if descriptor is None:
            raise ConfigurationError("it has no parameters")
        if descriptor.is_native:
            raise ConfigurationError("layout 'native' has no bits to be kept in a file")
        if descriptor.window is not None:
            raise ConfigurationError("a filter with a window is not kept in a file")
        if descriptor.slices:
            raise ConfigurationError("a filter that grows is not kept in a file")
    except (
        BloomlockError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,  # of JSON that is nested too deeply
    ) as error:
        raise ConfigurationError(f"{name} has a header of no use ({error!s:.300})") from error
    expected = file_bytes(descriptor, int(version))
    if length is not None and length != expected:
        raise ConfigurationError(
            f"{name} is damaged: it has {length} bytes and must have {expected}"
        )
    return descriptor.with_generation(0, READY), int(version)
