"""The file of a MemoryBloomFilter: saved, and mapped into memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bloomlock.arrays import np
from bloomlock.errors import ConfigurationError

from .files import (
    CHANGED,
    PAGE,
    SUM_BYTES,
    FileWriter,
    Layout,
    Part,
    padded,
    read_header,
    refuse_other_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.hash_keys import HashKey

    from .files import FilePath

    Bytes = npt.NDArray[np.uint8]

Mode = Literal["r", "c", "r+"]

_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY, "r+": mmap.ACCESS_WRITE}


def save(path: FilePath, descriptor: Descriptor, images: Sequence[Bytes]) -> None:
    """Write the file beside its place and rename it, so that it is there as a whole or not."""
    layout = Layout.of(descriptor)
    writer = FileWriter(path, descriptor, layout)
    try:
        for shard, start, stop in layout.pieces():
            # A copy: what other threads add must not come between a sum and its bytes.
            writer.write(Part(shard, start, images[shard][start:stop].tobytes()))
        writer.finish()
    except BaseException:
        writer.discard()
        raise


def load(
    path: FilePath, mode: Mode, key: HashKey | None = None
) -> tuple[Descriptor, list[Bytes], mmap.mmap]:
    """Map the file into memory; return what it holds, the image of each shard, and the mapping."""
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode must be 'r', 'c' or 'r+', not {mode!r:.80}")
    with Path(path).open("r+b" if mode == "r+" else "rb") as file:
        if mode == "r+":
            _claim(file.fileno(), path)
        length = os.fstat(file.fileno()).st_size
        start = file.read(PAGE)
        descriptor, layout = read_header(repr(os.fspath(path)), start, length)
        kind = "with discarded items" if layout.discarded else ""
        if descriptor.slices:
            kind = "with a time window" if descriptor.window is not None else "that grows"
        if kind:
            raise ConfigurationError(
                f"{os.fspath(path)!r} holds a filter {kind}, which is in a server only; use "
                "BloomFilter.import_file"
            )
        refuse_other_key(repr(os.fspath(path)), descriptor, key)
        descriptor = descriptor.with_key(key)
        if mode == "r+":
            # Before any bit is changed: sums that do not hold any more must not be believed.
            file.seek(length - SUM_BYTES)
            file.write(CHANGED)
            file.flush()
            os.fsync(file.fileno())
        try:
            mapped = mmap.mmap(file.fileno(), length, access=_ACCESS[mode])
        except ValueError as error:
            raise ConfigurationError(
                f"{os.fspath(path)!r} is damaged: it was cut while it was opened"
            ) from error
    starts = range(PAGE, layout.end, padded(layout.image))
    images = [np.frombuffer(mapped, np.uint8, layout.image, start) for start in starts]
    return descriptor, images, mapped


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
