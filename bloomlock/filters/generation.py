"""One generation of a filter as an object sees it, and how its kind of shards is kept and counted.

A view is replaced as a whole, so an operation that took one at its start is not confused by a clear
in another thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.descriptor import DISCARDED, GENERATION_BITS, HEADER_BYTES, generation_of
from bloomlock.keys import native_key
from bloomlock.native import EXPANSION
from bloomlock.sizing import shard_capacity
from bloomlock.slices import SliceState
from bloomlock.strategies import Shard
from bloomlock.strategies.bitmap import image_bytes

from .fill import Counted, count_bitmaps, count_servers_own

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core
    from bloomlock.hashing import Hasher
    from bloomlock.keys import FilterKeys


@dataclass(frozen=True)
class Kind:
    """What the shards of a filter are: a header and bitmaps in one string.

    A filter that the server has itself (BF.*) is a key of its own beside a string of the header
    alone. It carries the generation, and is reserved before the string with the header is there.

    Attributes:
        count: Counts the items; its result is None if the filter changed meanwhile.
        is_counted: Whether the server has the filter itself, and keeps count of its items.
        is_sorted: Whether the set of tombstones is sorted, by epochs.
    """

    count: Callable[[Descriptor, Sequence[Shard]], Core[Counted | None]]
    is_counted: bool = False
    is_sorted: bool = False

    def keys(self, key: str, header: int) -> tuple[str, ...]:
        return (native_key(key, generation_of(header)),) if self.is_counted else ()

    def reserve(self, key: str, descriptor: Descriptor, seconds: int) -> list[bytes]:
        """Return the commands that make these keys, empty, for some seconds."""
        items = shard_capacity(descriptor.capacity, descriptor.size.shards)
        reserve = (repr(descriptor.error_rate), items, "EXPANSION", EXPANSION)
        commands = []
        for own in self.keys(key, descriptor.header):
            commands.append(encode_command("BF.RESERVE", own, *reserve))
            commands.append(encode_command("EXPIRE", own, seconds))
        return commands


PLAIN, NATIVE = Kind(count_bitmaps), Kind(count_servers_own, is_counted=True)
WINDOWED = Kind(count_bitmaps, is_sorted=True)


def kind_of(descriptor: Descriptor) -> Kind:
    if descriptor.window:
        return WINDOWED
    return NATIVE if descriptor.native else PLAIN


def set_header(key: str, header: int) -> bytes:
    return encode_command("SETRANGE", key, 0, header.to_bytes(HEADER_BYTES, "big"))


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
