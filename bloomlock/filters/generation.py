"""One generation of a filter as an object sees it.

It is replaced as a whole, so an operation that took one at its start is not confused by a clear in
another thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bloomlock.descriptor import DISCARDED, GENERATION_BITS
from bloomlock.sizing import FIRST_BIT
from bloomlock.slices import SlicedHasher, SliceState
from bloomlock.strategies import Shard
from bloomlock.strategies.bitmap import image_bytes

from .kinds import kind_of

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.hashing import Hasher
    from bloomlock.keys import FilterKeys

    from .kinds import Kind


@dataclass(frozen=True, slots=True)
class View:
    """What one generation fixes.

    Attributes:
        descriptor: Its parameters.
        header: What every shard starts with.
        hasher: Places items.
        shards: Where the bits are.
        kind: What the shards hold.
        image_bytes: Length of all shards' strings together.
        discards: Whether a header said that there are discarded items, as far as this object has
            heard.
    """

    descriptor: Descriptor
    header: int
    hasher: Hasher
    shards: tuple[Shard, ...]
    kind: Kind
    image_bytes: int
    discards: bool = False

    @classmethod
    def of(cls, keys: FilterKeys, descriptor: Descriptor) -> View:
        """Return the view of the generation that a descriptor describes."""
        header, size = descriptor.header, descriptor.size
        digits = len(str(FIRST_BIT + size.shard_bits - 1))
        bits = size.shard_bits
        shards = tuple(Shard(keys.bits(n), header, digits, bits) for n in range(size.shards))
        whole = sum(map(image_bytes, shards))
        kind = kind_of(descriptor)
        hasher = descriptor.hasher()
        if isinstance(hasher, SlicedHasher):
            shards = tuple(shard._replace(slices=SliceState(hasher)) for shard in shards)
        return cls(descriptor, header, hasher, shards, kind, whole, descriptor.discards)

    def with_discards(self) -> View:
        """Return the same for an object that has heard of discarded items."""
        return replace(self, discards=True)

    def in_slices(self) -> tuple[tuple[Shard, ...], SlicedHasher]:
        """Return shards and hasher as of a filter with slices; a plain one has one."""
        if isinstance(self.hasher, SlicedHasher):
            return self.shards, self.hasher
        hasher = self.descriptor.sliced_hasher()
        state = SliceState(hasher)
        return tuple(shard._replace(slices=state) for shard in self.shards), hasher

    @property
    def answers_header(self) -> int:
        """What names the answers that may be kept while this is the view."""
        return self.header | DISCARDED if self.discards else self.header


def new_generation() -> int:
    """Return a generation that no other clear or creation will get; never 0."""
    return secrets.randbelow(2**GENERATION_BITS - 1) + 1
