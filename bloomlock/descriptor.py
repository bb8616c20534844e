"""The stored parameters of a filter and the header of its shards: encode, decode, compare. Pure.

The header is the first 64 bits of every shard, big-endian: the letter B, eight flag bits (none is
defined yet), and the 48-bit generation. Zero means: this is no filter (any more).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .blocked import BLOCK_BITS
from .errors import ConfigurationError, FilterMismatchError
from .hashing import Hasher, check_seeds
from .layouts import BLOCKED, CLASSIC, LAYOUTS, check_layout
from .sizing import (
    MAX_HASHES,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    Size,
    check_capacity,
    check_error_rate,
    check_shards,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .layouts import Formulas

FORMAT = 1
GENERATION_BITS = 48
HEADER_BYTES = 8
_MAGIC = ord("B") << 56
_FLAGS = 0xFF << GENERATION_BITS

READY = "ready"
CREATING = "creating"
COPYING = "copying"

FIELDS = (
    "format",
    "capacity",
    "error_rate",
    "shard_bits",
    "num_hashes",
    "shards",
    "seeds",
    "layout",
    "generation",
    "state",
)


def header_of(generation: int) -> int:
    """Return the header of a shard of that generation, as BITFIELD `GET i64 0` answers it.

    >>> hex(header_of(0xABC))
    '0x4200000000000abc'
    """
    return _MAGIC | generation


def is_header(value: int) -> bool:
    """Tell whether the first 64 bits of a string are a filter's header."""
    return value >> 56 == _MAGIC >> 56


def has_unknown_flags(value: int) -> bool:
    """Tell whether a header carries flags, which this version cannot know."""
    return value & _FLAGS != 0


def header_from_bytes(data: bytes) -> int:
    """Return the header from `GETRANGE key 0 7`; a string too short has none."""
    return int.from_bytes(data, "big") if len(data) == HEADER_BYTES else 0


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What every client of a filter must agree on.

    Attributes:
        capacity: Distinct items the filter is sized for, n.
        error_rate: False-positive rate at that fill, p.
        size: Bits, hash functions and shards.
        seeds: One Murmur3 seed for each hash function; None: default hashing.
        layout: Where the bits of an item may lie: "classic", anywhere in its shard, or "blocked",
            in one block of 64 bytes.
        generation: Changes whenever the filter is cleared or replaced; never 0.
        state: "ready"; "creating" while shards are initialised; "copying" while a copy fills.
    """

    capacity: int
    error_rate: float
    size: Size
    seeds: tuple[int, ...] | None = None
    layout: str = CLASSIC
    generation: int = 0
    state: str = READY

    @property
    def header(self) -> int:
        """The header every shard of this generation starts with."""
        return header_of(self.generation)

    @property
    def formulas(self) -> Formulas:
        """Rates and estimates as they hold for its layout."""
        return LAYOUTS[self.layout]

    def hasher(self) -> Hasher:
        """Return the hasher that places items in this filter."""
        size = self.size
        return Hasher(size.shard_bits, size.num_hashes, size.shards, self.seeds, self.layout)

    def with_generation(self, generation: int, state: str) -> Descriptor:
        """Return the same parameters for another generation."""
        return replace(self, generation=generation, state=state)

    def same_bits(self, other: Descriptor) -> bool:
        """Tell whether an item has the same offsets in both."""
        return (self.size, self.seeds, self.layout) == (other.size, other.seeds, other.layout)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters a caller asks for, checked."""

    capacity: int
    error_rate: float
    seeds: tuple[int, ...] | None
    shards: int | None
    layout: str = CLASSIC

    @classmethod
    def check(
        cls,
        capacity: object,
        error_rate: object,
        seeds: object = None,
        shards: object = None,
        layout: object = CLASSIC,
    ) -> Wanted:
        """Check every parameter; raises ConfigurationError on the first that is not usable."""
        wanted = cls(
            check_capacity(capacity),
            check_error_rate(error_rate),
            check_seeds(seeds),
            check_shards(shards),
            check_layout(layout, seeds),
        )
        wanted.describe()
        return wanted

    @classmethod
    def of(cls, descriptor: Descriptor) -> Wanted:
        """Return the parameters that give this descriptor."""
        return cls(
            descriptor.capacity,
            descriptor.error_rate,
            descriptor.seeds,
            descriptor.size.shards,
            descriptor.layout,
        )

    def describe(self) -> Descriptor:
        """Return the descriptor of a new filter with these parameters, its generation still 0."""
        num_hashes = len(self.seeds) if self.seeds else None
        size = LAYOUTS[self.layout].size_for(
            self.capacity, self.error_rate, num_hashes=num_hashes, shards=self.shards
        )
        return Descriptor(self.capacity, self.error_rate, size, self.seeds, self.layout)

    def differences(self, stored: Descriptor) -> list[str]:
        """Return "parameter: stored X, asked Y" for each parameter that differs."""
        pairs = [
            ("capacity", stored.capacity, self.capacity),
            ("error_rate", stored.error_rate, self.error_rate),
            ("layout", stored.layout, self.layout),
            ("seeds", stored.seeds, self.seeds),
            ("shards", stored.size.shards, self.shards or stored.size.shards),
        ]
        return [f"{what}: stored {old}, asked {new}" for what, old, new in pairs if old != new]


def encode(descriptor: Descriptor) -> dict[str, str]:
    """Return the fields of the descriptor's hash.

    >>> encode(Wanted.check(1000, 0.01).describe().with_generation(7, READY))["capacity"]
    '1000'
    """
    values = (
        FORMAT,
        descriptor.capacity,
        repr(descriptor.error_rate),
        descriptor.size.shard_bits,
        descriptor.size.num_hashes,
        descriptor.size.shards,
        ",".join(map(str, descriptor.seeds or ())),
        descriptor.layout,
        descriptor.generation,
        descriptor.state,
    )
    return dict(zip(FIELDS, map(str, values), strict=True))


def decode(name: str, values: Sequence[bytes | None]) -> Descriptor | None:
    """Return the descriptor from the values of FIELDS, None if there is none at all.

    Raises:
        FilterMismatchError: If it is of a newer format or cannot be read.
    """
    if all(value is None for value in values):
        return None
    fields = {
        key: value.decode("utf-8", "replace")
        for key, value in zip(FIELDS, values, strict=True)
        if value is not None
    }
    written = fields.get("format", "")
    if written.isdecimal() and int(written) > FORMAT:
        raise FilterMismatchError(
            f"filter {name!r} is stored in format {written}, and this version of bloomlock "
            f"reads formats up to {FORMAT}; upgrade bloomlock"
        )
    try:
        return _decode_fields(fields)
    except (KeyError, ValueError, ConfigurationError) as error:
        raise FilterMismatchError(
            f"filter {name!r} has a descriptor that cannot be read ({error})"
        ) from error


def _decode_fields(fields: Mapping[str, str]) -> Descriptor:
    if int(fields["format"]) != FORMAT:
        raise ConfigurationError(f"format {fields['format']}")
    size = Size(int(fields["shard_bits"]), int(fields["num_hashes"]), int(fields["shards"]))
    generation = int(fields["generation"])
    seeds = tuple(int(seed) for seed in fields["seeds"].split(",") if seed) or None
    if min(size.shard_bits, size.num_hashes, size.shards, generation) < 1:
        raise ConfigurationError("a size or the generation is not positive")
    if size.num_hashes > MAX_HASHES or size.shard_bits > MAX_SHARD_BITS or size.shards > MAX_SHARDS:
        raise ConfigurationError("a size is beyond what this version handles")
    if seeds and len(check_seeds(seeds) or ()) != size.num_hashes:
        raise ConfigurationError("as many seeds as hash functions are needed")
    layout = check_layout(fields["layout"], seeds)
    if layout == BLOCKED and size.shard_bits % BLOCK_BITS:
        raise ConfigurationError("a shard is not whole blocks")
    return Descriptor(
        check_capacity(int(fields["capacity"])),
        check_error_rate(float(fields["error_rate"])),
        size,
        seeds,
        layout,
        generation,
        fields["state"],
    )
