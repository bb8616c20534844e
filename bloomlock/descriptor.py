"""The parameters of a filter that all its clients agree on, and the header of its shards. Pure.

The header is the first 64 bits of a shard: the letter B, eight flag bits, the 48-bit generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from . import sizing
from .errors import ConfigurationError
from .hashing import Hasher
from .sizing import FIRST_BYTE, MIN_SHARD_BITS

if TYPE_CHECKING:
    from .hash_keys import HashKey
    from .sizing import Size
    from .slices import Growth, Ring, Slice

GENERATION_BITS = 48
HEADER_BYTES = 8
_MAGIC = ord("B") << 56
_FLAGS = 0xFF << GENERATION_BITS
DISCARDED = 0x02 << GENERATION_BITS
"""Flag of a header: items may have been discarded, and sets beside the shards say which."""

READY, PLACING, CLOSED = STATES = ("ready", "placing", "closed")
CREATE, CLEAR, COPY, IMPORT, REBUILD = ORIGINS = ("create", "clear", "copy", "import", "rebuild")


def header_of(generation: int) -> int:
    """Return the header of a shard, as BITFIELD `GET i64 0` answers it."""
    return _MAGIC | generation


def generation_of(header: int) -> int:
    return header & (1 << GENERATION_BITS) - 1


def is_header(value: int) -> bool:
    return value >> 56 == _MAGIC >> 56


def has_unknown_flags(value: int) -> bool:
    return value & _FLAGS & ~DISCARDED != 0


def unflagged(value: int) -> int:
    return value & ~DISCARDED


def has_discards(header: int) -> bool:
    return header & DISCARDED != 0


def header_from_bytes(data: bytes) -> int:
    """Return the header from `GETRANGE key 0 7`; a string too short has none."""
    return int.from_bytes(data, "big") if len(data) == HEADER_BYTES else 0


def header_bytes(header: int) -> bytes:
    return header.to_bytes(HEADER_BYTES, "big")


def plain_header(data: bytes) -> int:
    return unflagged(header_from_bytes(data))


class Replaced(NamedTuple):
    shards: int
    header: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What every client of a filter must agree on.

    Attributes:
        size: Bits, hash functions and shards; those of the first slice, where there are slices.
        native: Whether the server has the filter itself (BF.*), and places the items.
        generation: Changes whenever the filter is cleared or replaced; never 0.
        state: "ready"; "placing" until all its prepared shards are in their places; "closed" while
            a rebuild puts its last items into the generation that comes next.
        origin: What began the generation.
        root: The generation whose items this one has: another one after a rebuild.
        replaces: What it takes the place of while placing; what it had before while closed.
        slices: Those of a window, or all that it can have if it grows.
        discards: Whether items may have been discarded, which the first shard's header says.
    """

    capacity: int
    error_rate: float
    size: Size
    seeds: tuple[int, ...] | None = None
    native: bool = False
    generation: int = 0
    state: str = READY
    origin: str = CREATE
    root: int = 0
    key: HashKey | None = None
    window: Ring | None = None
    replaces: Replaced | None = None
    growth: Growth | None = None
    slices: tuple[Slice, ...] = ()
    discards: bool = field(default=False, compare=False)

    @property
    def header(self) -> int:
        return header_of(self.generation)

    def has_header(self, header: int) -> bool:
        return header == self.header

    @property
    def most_items(self) -> int:
        """Items that it can hold at its rate, with all slices if it grows."""
        return sum(part.capacity for part in self.slices) if self.growth else self.capacity

    @property
    def num_bits(self) -> int:
        """Bits of all shards together, with one slice if it grows."""
        return self.size.num_bits * (len(self.slices) if self.window else 1)

    @property
    def epoch_us(self) -> int:
        return self.window.epoch_us if self.window else 0

    def shard_bytes(self, slices: int = 1) -> int:
        if self.slices:
            return self.slices[-1 if self.window else slices - 1].end_byte
        return FIRST_BYTE + (self.size.shard_bits + 7) // 8

    def string_bytes(self, slices: int = 1) -> int:
        """Return the length of a shard's string: the header alone if the server has the filter."""
        return HEADER_BYTES if self.native else self.shard_bytes(slices)

    def error_rate_at_fill(self, fill_ratio: float) -> float:
        size = self.size
        rate = sizing.error_rate_at_fill(fill_ratio, size.num_hashes)
        if self.native:
            return min(rate, self.error_rate)  # instead of filling up it grows
        if self.seeds is not None:
            return rate
        whole = sizing.whole_collisions(fill_ratio, size.shard_bits, size.num_hashes)
        return min(1.0, rate + whole)

    def hasher(self) -> Hasher:
        """Return the hasher that places items in this filter; its key has to be known."""
        size = self.size
        # The server places the bits of a native one; only the shard of an item is decided here.
        bits = MIN_SHARD_BITS if self.native else size.shard_bits
        further = [part[:3] for part in self.slices[1:]] if self.growth else []
        key = None if self.key is None else self.key.secret
        if key is None and self.key is not None:
            raise ConfigurationError("the filter has a key, which was not given")
        return Hasher(bits, size.num_hashes, size.shards, self.seeds, key=key, further=further)

    def with_key(self, given: HashKey | None) -> Descriptor:
        has_to = self.key is not None and self.key.secret is None
        return replace(self, key=given) if has_to else self

    def with_generation(self, generation: int, origin: str = CREATE) -> Descriptor:
        made = replace(self, generation=generation, origin=origin, root=generation)
        return replace(made, state=READY, replaces=None, discards=False)

    def is_same(self, other: Descriptor | None) -> bool:
        mine = (self.generation, self.state)
        return other is not None and mine == (other.generation, other.state)

    def continues(self, before: Descriptor | None) -> bool:
        """Return whether this generation has all items of an earlier one."""
        if before is None:
            return False
        return self.root == before.root and self.generation != before.generation

    def same_bits(self, other: Descriptor) -> bool:
        names = ("size", "seeds", "native", "key", "window", "slices")
        return all(getattr(self, name) == getattr(other, name) for name in names)
