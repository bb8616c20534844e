"""Whole bitmaps between a filter in Redis and one in the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloomlock.descriptor import HEADER_BYTES, header_from_bytes
from bloomlock.effects import ConnectionLost, Core, ask, encode_command
from bloomlock.strategies.bitmap import image_bytes, merge_image
from bloomlock.strategies.wire import header_command

from .following import in_one_generation
from .memory import MemoryBloomFilter

if TYPE_CHECKING:
    import numpy.typing as npt

    from bloomlock.strategies import Shard

    from .core import FilterCore
    from .view import View

    Bytes = npt.NDArray[np.uint8]

BYTES_PER_TRIP = 2 * 1024 * 1024


def merge(core: FilterCore, memory: MemoryBloomFilter) -> Core[None]:
    """Add everything that a filter in the process holds; may be repeated.

    Raises:
        ConfigurationError: If items have other bits there.
        FilterLostError: If the filter was cleared or lost meanwhile and `on_lost="raise"`.
    """

    def send(view: View) -> Core[bool | None]:
        memory._core.check_same_bits(view.descriptor)  # noqa: SLF001 - our own class
        for shard, image in zip(view.shards, memory.images(), strict=True):
            # A copy: other threads may be adding, and what is sent again must be what was sent.
            segment = yield from merge_image(shard, image.copy())
            if isinstance(segment.error, ConnectionLost):
                raise segment.error.cause from None
            if segment.error is not None:
                raise segment.error
            if segment.header != view.header:
                return None
        yield from core.fill.look_after_add(view)
        return True

    yield from in_one_generation(core, send)


def fetch(core: FilterCore) -> Core[MemoryBloomFilter]:
    """Return the bits as a filter in the process.

    What was added before is in it, what is added meanwhile may be, some bits of an item included.

    Raises:
        FilterLostError: As `merge`.
    """

    def read(view: View) -> Core[MemoryBloomFilter | None]:
        images = []
        for shard in view.shards:
            image = yield from _fetch_shard(shard)
            if image is None:
                return None
            images.append(image)
        return MemoryBloomFilter.of(view.descriptor, images)

    return (yield from in_one_generation(core, read))


def _fetch_shard(shard: Shard) -> Core[Bytes | None]:
    size = image_bytes(shard)
    image = np.zeros(size, np.uint8)
    for start in range(HEADER_BYTES, size, BYTES_PER_TRIP):
        stop = min(start + BYTES_PER_TRIP, size)
        bits, header = yield from ask(
            shard.key,
            encode_command("GETRANGE", shard.key, start, stop - 1),
            header_command(shard.key),
        )
        if header_from_bytes(header) != shard.header:
            return None
        image[start:stop] = np.frombuffer(bits, np.uint8)
    return image
