"""One generation of a filter as an object sees it.

It is replaced as a whole, so an operation that took one at its start is not confused by a clear in
another thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloomlock.descriptor import DISCARDED, GENERATION_BITS
from bloomlock.slices import SliceState
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
    """Everything that stays constant for one generation.

    Attributes:
        header: What every shard starts with.
        image_bytes: Length of all shards' strings together.
        expected: The header of an answer that brings no news: with the flag if this object has
            heard of discarded items.
    """

    descriptor: Descriptor
    header: int
    hasher: Hasher
    shards: tuple[Shard, ...]
    kind: Kind
    image_bytes: int
    expected: int

    @classmethod
    def of(cls, keys: FilterKeys, descriptor: Descriptor) -> View:
        header, hasher, bits = descriptor.header, descriptor.hasher(), descriptor.size.shard_bits
        state = SliceState(hasher, descriptor.epoch_us, descriptor.slices)
        shards = []
        for number in range(descriptor.size.shards):
            if descriptor.slices:
                state = SliceState(hasher, descriptor.epoch_us, descriptor.slices)
            shards.append(Shard(keys.bits(number), header, bits, state))
        whole, kind = sum(map(image_bytes, shards)), kind_of(descriptor)
        expected = header | DISCARDED if descriptor.discards else header
        return cls(descriptor, header, hasher, tuple(shards), kind, whole, expected)

    @property
    def discards(self) -> bool:
        return self.expected != self.header


def new_generation() -> int:
    """Return a generation that no other clear or creation will get; never 0."""
    return secrets.randbelow(2**GENERATION_BITS - 1) + 1
