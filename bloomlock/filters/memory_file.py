r"""The file of a MemoryBloomFilter: written as a whole, read by mapping it into memory.

    bloomlock bitmap 1\n              magic and version of this format
    {"capacity": "1000", ...}\n       descriptor and length of the file, as JSON
    6f3b...\n                         SHA-256 of the two lines above, in hexadecimal
    zeros up to 4096 bytes
    image of shard 0                  eight zero bytes, then the bits as in Redis
    zeros up to the next multiple of 4096
    image of shard 1, and so on; the last is filled up too

`head -3` shows what a file holds.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bloomlock.arrays import np
from bloomlock.descriptor import CLEARED, FIELDS, IDLE, KEY, READY, WINDOW, decode, encode
from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    FilterMismatchError,
)
from bloomlock.hashing import key_difference

from .memory_bits import MappedFile, MemoryBits, image_bytes

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.hashing import HashKey

    FilePath = str | os.PathLike[str]

Mode = Literal["r", "c", "r+"]

FORMAT = 1
MAGIC = b"bloomlock bitmap "
PAGE = 4096
"""Images start at multiples of this, a page of memory on most machines."""

_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY, "r+": mmap.ACCESS_WRITE}


def save(path: FilePath, descriptor: Descriptor, bits: MemoryBits) -> None:
    """Write the file beside its place and rename it, so that it is there as a whole or not."""
    bits.check_file()
    target = Path(path).resolve()  # a link stays one
    # Another name for every writer: two that save at once each leave a whole file.
    beside = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with beside.open("xb") as file:
            file.write(_header(descriptor))
            for image in bits.images:
                file.write(image.data)
                file.write(bytes(-file.tell() % PAGE))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the rename may be lost with the machine's power
    finally:
        os.close(folder)


def load(path: FilePath, mode: Mode, key: HashKey | None = None) -> tuple[Descriptor, MemoryBits]:
    """Map the file into memory.

    Cost: the header is read; bits are read by the system when they are touched.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode must be 'r', 'c' or 'r+', not {mode!r:.80}")
    with Path(path).open("r+b" if mode == "r+" else "rb") as file:
        if mode == "r+":
            _claim(file.fileno(), path)
        length = os.fstat(file.fileno()).st_size
        start = file.read(PAGE)
        descriptor = _descriptor(path, start, length)
        difference = key_difference(descriptor.key, key, opens=True)
        if difference is not None:
            raise FilterMismatchError(
                f"{os.fspath(path)!r} holds a filter with another key ({difference}); give the one "
                "it was made with"
            )
        descriptor = descriptor.with_key(key)
        try:
            mapped = mmap.mmap(file.fileno(), length, access=_ACCESS[mode])
        except ValueError as error:
            raise ConfigurationError(
                f"{os.fspath(path)!r} is damaged: it was cut while it was opened"
            ) from error
    size = image_bytes(descriptor)
    starts = range(PAGE, length, _padded(size))
    images = [np.frombuffer(mapped, np.uint8, size, start) for start in starts]
    return descriptor, MemoryBits(descriptor, images, MappedFile(path, mapped))


def _claim(handle: int, path: FilePath) -> None:
    """Keep out other writers, whose bits would be lost, until the mapping is gone."""
    import fcntl  # noqa: PLC0415 - does not exist on Windows, where the rest is used all the same

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"{os.fspath(path)!r} is open with mode='r+' elsewhere, and one writer at a time is "
            "allowed; use mode='r' or 'c'"
        ) from error


def _padded(length: int) -> int:
    return -(-length // PAGE) * PAGE


def _file_bytes(descriptor: Descriptor) -> int:
    return PAGE + descriptor.size.shards * _padded(image_bytes(descriptor))


def _header(descriptor: Descriptor) -> bytes:
    fields: dict[str, Any] = encode(descriptor.with_generation(1, READY))
    fields["bytes"] = _file_bytes(descriptor)
    lines = b"%s%d\n%s\n" % (MAGIC, FORMAT, json.dumps(fields).encode())
    header = b"%s%s\n" % (lines, hashlib.sha256(lines).hexdigest().encode())
    return header.ljust(PAGE, b"\0")


def _descriptor(path: FilePath, start: bytes, length: int) -> Descriptor:
    """Return the descriptor from the first page of a file, or raise ConfigurationError."""
    magic, _, rest = start.partition(b"\n")
    version = magic.removeprefix(MAGIC)
    if not magic.startswith(MAGIC) or not re.fullmatch(b"[0-9]{1,9}", version):
        raise ConfigurationError(f"{os.fspath(path)!r} is no file of a MemoryBloomFilter")
    if int(version) > FORMAT:
        raise ConfigurationError(
            f"{os.fspath(path)!r} has format {int(version)}, and this version of bloomlock reads "
            f"formats up to {FORMAT}; upgrade bloomlock"
        )
    text, _, rest = rest.partition(b"\n")
    lines = b"%s\n%s\n" % (magic, text)
    if rest[:65] != hashlib.sha256(lines).hexdigest().encode() + b"\n":
        raise ConfigurationError(f"{os.fspath(path)!r} is damaged: its header has another checksum")
    try:
        fields = json.loads(text)
        # Whether its generation began with a clear is of no account in a file, and not written.
        absent = {CLEARED} | ({IDLE, KEY, WINDOW} - fields.keys())
        values = [None if name in absent else fields[name].encode() for name in FIELDS]
        descriptor = decode(os.fspath(path), values)
        if descriptor is not None and descriptor.is_native:
            raise ConfigurationError("layout 'native' has no bits to be kept in a file")
        if descriptor is not None and descriptor.window is not None:
            raise ConfigurationError("a filter with a window is not kept in a file")
    except (
        BloomlockError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,  # of JSON that is nested too deeply
    ) as error:
        raise ConfigurationError(
            f"{os.fspath(path)!r} has a header of no use ({error!s:.300})"
        ) from error
    if descriptor is None or length != _file_bytes(descriptor):
        expected = _file_bytes(descriptor) if descriptor else 0
        raise ConfigurationError(
            f"{os.fspath(path)!r} is damaged: it has {length} bytes and must have {expected}"
        )
    return descriptor.with_generation(0, READY)
