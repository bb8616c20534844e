"""The file of a MemoryBloomFilter: saved, and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.arrays import np
from bloomlock.errors import ConfigurationError

from .files import FileReader, FileWriter, Layout, refuse_other_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bloomlock.descriptor import Descriptor
    from bloomlock.hash_keys import HashKey

    from .files import FilePath

    Bytes = npt.NDArray[np.uint8]


def save(path: FilePath, descriptor: Descriptor, images: Sequence[Bytes]) -> None:
    layout = Layout.of(descriptor)
    writer = FileWriter(path, descriptor, layout)
    try:
        for shard, start, stop in layout.pieces():
            # A copy: what other threads add must not come between the sum and its bytes.
            writer.write(images[shard][start:stop].tobytes())
        writer.finish()
    except BaseException:
        writer.discard()
        raise


def load(path: FilePath, key: HashKey | None) -> tuple[Descriptor, list[Bytes]]:
    reader = FileReader(path)
    try:
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
    finally:
        reader.close()
