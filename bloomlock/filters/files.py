"""Files of filters: written as a whole, read part by part, and their checksums compared."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.hash_keys import check_key, key_difference
from bloomlock.sizing import FIRST_BYTE

from .file_format import (
    BLOCK_BYTES,
    CHANGED,
    PAGE,
    RECORD_BYTES,
    SUM_BYTES,
    BlockSums,
    Images,
    Part,
    encode_header,
    file_bytes,
    read_header,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from bloomlock.descriptor import Descriptor
    from bloomlock.hash_keys import HashKey

    FilePath = str | os.PathLike[str]

PART_BYTES = 2 * 1024 * 1024
TABLE_PART_RECORDS = 5000
"""Records of a table that go in one part."""


class FileWriter:
    """Writes a file part by part.

    It is written beside its place and renamed at the end, so that it is there as a whole or not. An
    open file, such as a pipe, is written as it is.

    Args:
        target: The path, or a file that is open for bytes.
        descriptor: What the file holds.
        images: How long its images are.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(
        self, target: FilePath | BinaryIO, descriptor: Descriptor, images: Images | None = None
    ) -> None:
        self._images = images or Images.of(descriptor)
        self._length: int | None = None
        self._sums = BlockSums()
        self._head = encode_header(descriptor, self._images)
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
        if not part.start:
            self._length = self._images.length_of(part.image, part.data)
        self._put(part.data)
        if part.start + len(part.data) == self._length and self._images.is_padded(part.image):
            self._put(bytes(-self._sums.place % PAGE))

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
        images: How long its images are.
        num_bytes: How long it is.

    Raises:
        ConfigurationError: If it is no whole file of this format.
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
        self._starts = [PAGE]
        length = None
        with suppress(OSError):  # of what cannot be sought the length is known at the end
            if self._file.seekable():
                start = self._file.tell()
                length = self._file.seek(0, os.SEEK_END) - start
                self._file.seek(start)
        self._is_whole = length is not None
        self._head = self._read(PAGE)
        self.descriptor, self.images = read_header(self.name, self._head, length)
        self._length = 0
        self._end = self.images.end
        self.num_bytes = file_bytes(self.images)
        if length is not None:
            self._file.seek(start + self._end)
            self._take_table()
            self._file.seek(start + PAGE)

    def read(self) -> Part | None:
        """Return the next part; None after the last, when all of the file is known to be whole."""
        image = len(self._starts) - 1
        if image == self.images.num_images:
            self._end_reading()
            return None
        is_table = self.images.is_table(image)
        start = self._sums.place - self._starts[image]
        data = b""
        if not start:
            data = self._take(RECORD_BYTES if is_table else FIRST_BYTE)
            length = self.images.length_of(image, data)
            left = self.images.end_of_last - self._starts[image]
            is_last_table = is_table and image == self.images.num_images - 1
            if length is None or length > left or (is_last_table and length < left):
                raise ConfigurationError(
                    f"{self.name} is damaged: {self._name_of(image)} has no such length"
                )
            self._length = length
        most = TABLE_PART_RECORDS * RECORD_BYTES if is_table else PART_BYTES
        data += self._take(min(most, self._length - start) - len(data))
        if start + len(data) == self._length:
            if self.images.is_padded(image):
                self._take(-self._sums.place % PAGE)
            self._starts.append(self._sums.place)
        return Part(image, start, data)

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owns:
            self._file.close()

    def _name_of(self, image: int) -> str:
        shards = self.descriptor.size.shards
        return f"the {'table' if image >= shards else 'image'} of shard {image % shards}"

    def _take(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise ConfigurationError(
                f"{self.name} is damaged: it was cut at byte {self._sums.place + len(data)} of "
                f"{self.num_bytes}"
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
        if self._sums.place != self._end:
            raise ConfigurationError(
                f"{self.name} is damaged: its images end at byte {self._sums.place} and not at "
                f"byte {self._end}"
            )
        if self._is_whole:
            return
        self._take_table()
        self._compare(0)
        if self._read(1):
            raise ConfigurationError(
                f"{self.name} is damaged: it has more than its {self.num_bytes} bytes"
            )

    def _take_table(self) -> None:
        size = self.num_bytes - self._end
        found = self._read(size)
        if len(found) < size:
            raise ConfigurationError(
                f"{self.name} is damaged: it was cut at byte {self._end + len(found)} of "
                f"{self._end + size}"
            )
        table, seal = found[:-SUM_BYTES], found[-SUM_BYTES:]
        if seal == CHANGED:
            return
        if seal != hashlib.sha256(self._head + table).digest():
            raise ConfigurationError(
                f"{self.name} is damaged: its first {PAGE} bytes, or the checksums from byte "
                f"{self._end} on, were changed"
            )
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
                image = bisect_right(self._starts[: self.images.num_images], start) - 1
                raise ConfigurationError(
                    f"{self.name} is damaged: the bytes {start} to {stop - 1}, in "
                    f"{self._name_of(image)}, have another checksum"
                )


@dataclass(frozen=True)
class FileInfo:
    """What a file holds.

    Attributes:
        capacity: Items that the filter is for.
        error_rate: Its rate of false positives at that fill.
        shards: How many.
        window: How long it remembers items; None: for ever.
        grows: Whether it grows.
        discarded: Items that were discarded and not added since.
        num_bytes: Length of the file.
    """

    capacity: int
    error_rate: float
    shards: int
    window: timedelta | None
    grows: bool
    discarded: int
    num_bytes: int


def verify_file(path: FilePath, *, key: str | bytes | Literal[True] | None = None) -> FileInfo:
    """Read a whole file of a filter, compare its checksums, and return what it holds.

    Args:
        path: What `export_file` or `MemoryBloomFilter.save` wrote.
        key: The secret that the filter was made with; a random key is in the file.

    Raises:
        ConfigurationError: If it is damaged, foreign or of another format; the message names the
            place. Files that were changed in place have no checksums of their bits.
        FilterMismatchError: If the filter has another key.
        OSError: If it cannot be read.

    Cost: the file is read once; memory for some MiB.

    >>> import tempfile
    >>> from bloomlock import MemoryBloomFilter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     MemoryBloomFilter(1000, 1e-3).save(f"{folder}/pages")
    ...     verify_file(f"{folder}/pages").capacity
    1000
    """
    reader = FileReader(path)
    try:
        descriptor = reader.descriptor
        refuse_other_key(reader.name, descriptor, check_key(key))
        while reader.read() is not None:
            pass
        return FileInfo(
            capacity=descriptor.capacity,
            error_rate=descriptor.error_rate,
            shards=descriptor.size.shards,
            window=descriptor.window.length if descriptor.window else None,
            grows=descriptor.growth is not None,
            discarded=reader.images.discarded or 0,
            num_bytes=reader.num_bytes,
        )
    finally:
        reader.close()


def refuse_other_key(name: str, descriptor: Descriptor, key: HashKey | None) -> None:
    """Raise FilterMismatchError if a file's filter cannot be used with the key that is given."""
    difference = key_difference(descriptor.key, key, opens=True)
    if difference is not None:
        raise FilterMismatchError(
            f"{name} holds a filter with another key ({difference}); give the one it was made with"
        )
