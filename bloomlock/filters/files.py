r"""Files of filters.

    bloomlock bitmap 1\n              magic and version of this format
    {"capacity": "1000", ...}\n       descriptor, slices and number of tombstones, as JSON
    6f3b...\n                         SHA-256 of the two lines above, in hexadecimal
    zeros up to 4096 bytes
    image of shard 0                  eight zero bytes, then 16 of state and the bits, as in Redis
    image of shard 1, and so on
    tombstones                        28 bytes for each discarded item: shard, identity, epoch (0
                                      without a time window)
    SHA-256 of all of that, 32 bytes

All images are of one length. Of a filter that grows the JSON says how many slices that is.
`head -3` shows what a file holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from bloomlock.arrays import np
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.hash_keys import DIGEST_BYTES, key_difference
from bloomlock.spec import FIELDS, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.hash_keys import HashKey

    Bytes = npt.NDArray[np.uint8]
    FilePath = str | os.PathLike[str]

FORMAT = 1
MAGIC = b"bloomlock bitmap "
PAGE, SUM_BYTES = 4096, 32
SHARD_BYTES, EPOCH_BYTES = 4, 8
RECORD_BYTES = SHARD_BYTES + DIGEST_BYTES + EPOCH_BYTES
PIECE_BYTES = 1024 * 1024
BYTES_PER_TRIP = 2 * PIECE_BYTES


class Part(NamedTuple):
    """Bytes of the image of a shard, or of all tombstones, which count as one shard more."""

    shard: int
    start: int
    data: bytes | memoryview


class Layout(NamedTuple):
    """How many images of how many bytes a filter has, with how many slices, and tombstones."""

    shards: int
    image: int
    slices: int = 1
    discarded: int = 0

    @classmethod
    def of(cls, descriptor: Descriptor, slices: int = 1, discarded: int = 0) -> Layout:
        return cls(descriptor.size.shards, descriptor.string_bytes(slices), slices, discarded)

    @property
    def num_bytes(self) -> int:
        return self.shards * self.image + self.discarded * RECORD_BYTES

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield shard, first and last byte of each piece, in their order."""
        size = min(PIECE_BYTES, self.image)
        for shard in range(self.shards + 1):
            length = self.image
            if shard == self.shards:
                length = self.discarded * RECORD_BYTES
                size = max(1, size // RECORD_BYTES) * RECORD_BYTES
            for start in range(0, length, size):
                yield shard, start, min(start + size, length)

    def groups(self) -> Iterator[list[tuple[int, int, int]]]:
        """Yield the pieces that are read in one round trip."""
        pieces, most = self.pieces(), max(1, BYTES_PER_TRIP // min(PIECE_BYTES, self.image))
        while some := list(islice(pieces, most)):
            yield some


def encode_header(descriptor: Descriptor, layout: Layout) -> bytes:
    """Return the first page of a file."""
    fields: dict[str, Any] = encode(descriptor.with_generation(1))
    fields |= {"image_slices": layout.slices, "discarded": layout.discarded}
    lines = b"%s%d\n%s\n" % (MAGIC, FORMAT, json.dumps(fields).encode())
    header = b"%s%s\n" % (lines, hashlib.sha256(lines).hexdigest().encode())
    return header.ljust(PAGE, b"\0")


def read_header(name: str, start: bytes) -> tuple[Descriptor, Layout]:
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
        return _read_fields(name, json.loads(text))
    except Exception as error:
        # Of whatever kind it is: no writer of this format has written that.
        raise ConfigurationError(f"{name} has a header of no use ({error!s:.300})") from error


def _read_fields(name: str, fields: dict[str, Any]) -> tuple[Descriptor, Layout]:
    values = [fields[field].encode() if field in fields else None for field in FIELDS]
    descriptor = decode(name, values)
    if descriptor is None or descriptor.native:
        raise ConfigurationError("it is of no filter that has bits")
    slices, discarded = fields["image_slices"], fields["discarded"]
    most = len(descriptor.slices) if descriptor.growth else 1
    # `in` compares a value that is no int with each number of a range, which never ends.
    are_whole = type(slices) is type(discarded) is int
    if not are_whole or slices not in range(1, most + 1) or discarded not in range(2**63):
        raise ConfigurationError(f"image_slices is {slices!r:.80}, discarded {discarded!r:.80}")
    return descriptor.with_generation(0), Layout.of(descriptor, slices, discarded)


class FileWriter:
    """Writes a file part by part.

    It is written beside its place and renamed at the end, so that it is there as a whole or not. An
    open file, such as a pipe, is written as it is.
    """

    def __init__(self, target: FilePath | BinaryIO, descriptor: Descriptor, layout: Layout) -> None:
        self._sum = hashlib.sha256()
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
            self.write(encode_header(descriptor, layout))
        except BaseException:
            self.close()
            raise

    def write(self, data: bytes | memoryview) -> None:
        self._sum.update(data)
        self._file.write(data)

    def finish(self) -> None:
        """Write the checksum, and give the file its name; without it close() leaves no file."""
        self._file.write(self._sum.digest())
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

    def close(self) -> None:
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)
            with suppress(OSError):  # what is not written yet is of no use
                self._file.close()


class FileReader:
    """Reads a file part by part, and compares its checksum when it has read all."""

    def __init__(self, source: FilePath | BinaryIO) -> None:
        self._owns = isinstance(source, (str, os.PathLike))
        self._sum = hashlib.sha256()
        self.name = "the file that was given"
        if isinstance(source, (str, os.PathLike)):
            self.name = repr(os.fspath(source))
            self._file: BinaryIO = Path(source).open("rb")  # noqa: SIM115 - closed by close()
        else:
            self._file = source
        try:
            head = self._read(PAGE)
            self._sum.update(head)
            self.descriptor, self.layout = read_header(self.name, head)
        except BaseException:
            self.close()
            raise
        self._pieces = self.layout.pieces()

    def read(self) -> Part | None:
        """Return the next part; None after the last, when all of the file is known to be whole."""
        piece = next(self._pieces, None)
        if piece is None:
            self._compare_sum()
            return None
        shard, start, stop = piece
        data = self._take(stop - start)
        self._sum.update(data)
        if shard == self.layout.shards:
            numbers = [data[at : at + SHARD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
            if (most := int.from_bytes(max(numbers), "big")) >= shard:
                raise ConfigurationError(f"{self.name} is damaged: it has no shard {most}")
        return Part(shard, start, data)

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owns:
            self._file.close()

    def _take(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise ConfigurationError(f"{self.name} is damaged: it was cut short")
        return data

    def _read(self, size: int) -> bytes:
        """Return `size` bytes, or less where the file ends; a pipe gives it in pieces."""
        data = self._file.read(size)
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data

    def _compare_sum(self) -> None:
        if self._take(SUM_BYTES) != self._sum.digest():
            raise ConfigurationError(f"{self.name} is damaged: it has another checksum")
        if self._read(1):
            raise ConfigurationError(f"{self.name} is damaged: it has more bytes than it must have")


def refuse_other_key(name: str, descriptor: Descriptor, key: HashKey | None) -> None:
    """Raise FilterMismatchError if a file's filter cannot be used with the key that is given."""
    difference = key_difference(descriptor.key, key, opens=True)
    if difference is not None:
        raise FilterMismatchError(
            f"{name} holds a filter with another key ({difference}); give the one it was made with"
        )


def save_images(path: FilePath, descriptor: Descriptor, images: Sequence[Bytes]) -> None:
    layout = Layout.of(descriptor)
    with closing(FileWriter(path, descriptor, layout)) as writer:
        for shard, start, stop in layout.pieces():
            # A copy: what other threads add must not come between the sum and its bytes.
            writer.write(images[shard][start:stop].tobytes())
        writer.finish()


def load_images(path: FilePath, key: HashKey | None) -> tuple[Descriptor, list[Bytes]]:
    with closing(FileReader(path)) as reader:
        descriptor, layout = reader.descriptor, reader.layout
        kind = "with discarded items" if layout.discarded else ""
        if descriptor.slices:
            kind = "with a time window" if descriptor.window is not None else "that grows"
        if kind:
            raise ConfigurationError(
                f"{reader.name} holds a filter {kind}, which is in a server only; use "
                "BloomFilter.import_file"
            )
        refuse_other_key(reader.name, descriptor, key)
        images = [np.empty(layout.image, np.uint8) for _ in range(layout.shards)]
        while (part := reader.read()) is not None:
            stop = part.start + len(part.data)
            images[part.shard][part.start : stop] = np.frombuffer(part.data, np.uint8)
        return descriptor.with_key(key), images
