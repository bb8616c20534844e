"""One generation of a filter as an object sees it.

It is replaced as a whole, so an operation that took one at its start is not confused by a clear in
another thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bloomlock.descriptor import FORGETTING, GENERATION_BITS, SLICE_BITS
from bloomlock.shard_hashing import Chained
from bloomlock.sizing import FIRST_BIT
from bloomlock.strategies import Chain, Shard
from bloomlock.strategies.bitmap import image_bytes

from .contents import contents_of
from .versions import KnownVersions

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.hashing import Hasher
    from bloomlock.keys import FilterKeys

    from .contents import Contents


@dataclass(frozen=True, slots=True)
class View:
    """What one generation fixes.

    Attributes:
        descriptor: Its parameters.
        header: What every shard starts with.
        hasher: Places items.
        shards: Where the bits are.
        contents: What the shards hold.
        image_bytes: Length of all shards' strings together.
        forgotten: What is known of items that were forgotten; None: the headers say of none that
            it was, as far as this object has heard.
    """

    descriptor: Descriptor
    header: int
    hasher: Hasher
    shards: tuple[Shard, ...]
    contents: Contents
    image_bytes: int
    forgotten: KnownVersions | None = None

    @classmethod
    def of(cls, keys: FilterKeys, descriptor: Descriptor) -> View:
        """Return the view of the generation that a descriptor describes."""
        header, size = descriptor.header, descriptor.size
        digits = len(str(FIRST_BIT + size.shard_bits - 1))
        bits = size.shard_bits * descriptor.cell_bits
        shards = tuple(Shard(keys.bits(n), header, digits, bits) for n in range(size.shards))
        whole = sum(map(image_bytes, shards))
        contents = contents_of(descriptor)
        hasher = descriptor.hasher()
        if isinstance(hasher, Chained):
            shards = tuple(shard._replace(chain=Chain(hasher)) for shard in shards)
        made = cls(descriptor, header, hasher, shards, contents, whole)
        return made.with_forgotten() if descriptor.forgets else made

    def with_forgotten(self) -> View:
        """Return the same for an object that has heard of items that were forgotten."""
        also = self.header | FORGETTING
        shards = tuple(shard._replace(also=also) for shard in self.shards)
        return replace(self, shards=shards, forgotten=KnownVersions())

    @property
    def answers_header(self) -> int:
        """What names the answers that may be kept while this is the view."""
        return self.header if self.forgotten is None else self.header | FORGETTING


def new_generation() -> int:
    """Return a generation that no other clear or creation will get; never 0.

    Its lowest bits are 0: those of a shard's header are the number of its slices.
    """
    return secrets.randbelow(2 ** (GENERATION_BITS - SLICE_BITS) - 1) + 1 << SLICE_BITS
