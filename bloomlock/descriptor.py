"""The stored parameters of a filter and the header of its shards: encode, decode, compare. Pure.

The header is the first 64 bits of every shard, big-endian: the letter B, eight flag bits, and the
48-bit generation. Zero means: this is no filter (any more). A shard that has grown has the flag 1,
and the lowest four bits, which are 0 in every generation, are how many slices it has got.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from . import blocked, growth, native, sizing
from .errors import ConfigurationError, FilterMismatchError
from .growth import Growth, check_growth, slice_error_rate
from .hashing import (
    DIGEST_BYTES,
    MAX_KEY_BYTES,
    MIN_KEY_BYTES,
    Chained,
    Hasher,
    HashKey,
    Unplaced,
    check_key,
    check_seeds,
    key_difference,
)
from .sizing import (
    BALANCED,
    BLOCKED,
    CLASSIC,
    MAX_CAPACITY,
    MAX_HASHES,
    MAX_SHARD_BITS,
    MAX_SHARDS,
    MEMORY,
    NATIVE,
    Optimize,
    Size,
    check_capacity,
    check_error_rate,
    check_num_hashes,
    check_optimize,
    check_shards,
    usual_shards,
)
from .windows import STATE_BYTES, check_window, read_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .growth import Slice
    from .keys import FilterKeys
    from .windows import Window


FORMAT = 3
"""Of new filters: any number of hash functions, and a key or none. A filter that is cleared or
copied keeps the format it has, so that clients of either version go on with it."""

KEYED_FORMAT = 2
"""Of a filter with a key, and format 1 of one without: k follows from capacity and error rate."""

WINDOW_FORMAT = 4
"""Of filters with a time window."""
GROWING_FORMAT = 4
"""Of filters that grow."""
LATEST_FORMAT = 4

MAX_NATIVE_BITS = 2**37
"""More than 2^30 items take at any rate."""

SPREAD_FORMAT = 3
"""From here on the shards lie evenly over the slots of a cluster."""

MOST_IDLE_MS = 10**12

MOST_FOLLOWED = 32
"""How many generations of a filter that was made anew are known; each time takes two."""

GENERATION_BITS = 48
HEADER_BYTES = 8
_MAGIC = ord("B") << 56
_FLAGS = 0xFF << GENERATION_BITS
FORGETTING = 0x02 << GENERATION_BITS
"""Flag of a header: items may have been forgotten, and tables beside the shards say which."""
SEALED = 0x01 << GENERATION_BITS
"""The flag of a shard in which slices are full."""
SLICE_BITS = 4
_SLICES = (1 << SLICE_BITS) - 1
_WHOLE = re.compile("[0-9]{1,18}")
_HEXADECIMAL = re.compile("([0-9a-f]{2})+")

READY = "ready"
CREATING = "creating"
COPYING = "copying"
REPLACING = "replacing"
RENAMING = "renaming"
PREPARING = "preparing"
PLACING = "placing"
CLOSED = "closed"
STATES = (READY, CREATING, COPYING, REPLACING, RENAMING, PREPARING, PLACING, CLOSED)
CLEARED = "cleared"
REPLACES = "replaces"
FOLLOWS = "follows"
KEY = "key"
IDLE = "idle_ms"
WINDOW = "window"
GROWTH = "growth"
UP_TO = "up_to"
SLICES = "slices"
OF_GROWTH = (GROWTH, UP_TO, SLICES)

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
    CLEARED,
    KEY,
    IDLE,
    WINDOW,
    REPLACES,
    FOLLOWS,
    *OF_GROWTH,
)
"""Of a filter with a key `key`: "random:" and the key, or "secret:" and its check; of one that is
forgotten when it is not used `idle_ms`; of one with a time window its microseconds, a slash, its
slices; of one that is put in the place of another `replaces`; of one that was made anew `follows`,
the headers of the generations before with commas between. The last three of a filter that
grows; its slices are "m/k" each, and written to be compared."""


def header_of(generation: int) -> int:
    """Return the header of a shard of that generation, as BITFIELD `GET i64 0` answers it.

    >>> hex(header_of(0xABC))
    '0x4200000000000abc'
    """
    return _MAGIC | generation


def generation_of(header: int) -> int:
    """Return the generation that a header has.

    >>> generation_of(header_of(0xABC)) == 0xABC
    True
    """
    return header & (1 << GENERATION_BITS) - 1


def is_header(value: int) -> bool:
    """Return whether the first 64 bits of a string are a filter's header."""
    return value >> 56 == _MAGIC >> 56


def has_unknown_flags(value: int) -> bool:
    """Return whether a header carries flags that this version does not know."""
    return value & _FLAGS & ~(SEALED | FORGETTING) != 0


def unflagged(value: int) -> int:
    """Return a header without the flags that this version knows.

    >>> hex(unflagged(header_of(0xABC) | FORGETTING))
    '0x4200000000000abc'
    """
    return value & ~FORGETTING


def with_slices(header: int, slices: int) -> int:
    """Return the header of a shard with n slices, from that of its generation.

    >>> hex(with_slices(header_of(0xAB0), 3)), with_slices(header_of(0xAB0), 1) == header_of(0xAB0)
    ('0x4201000000000ab2', True)
    """
    return header | SEALED | (slices - 1) if slices > 1 else header


def slices_of(header: int) -> int:
    """Return how many slices a shard with this header has.

    >>> slices_of(with_slices(header_of(0xAB0), 3)), slices_of(header_of(0xAB0))
    (3, 1)
    """
    return 1 + (header & _SLICES) if header & SEALED else 1


def without_slices(header: int) -> int:
    """Return the header of the generation, whatever a shard has grown to.

    >>> without_slices(with_slices(header_of(0xAB0), 3)) == header_of(0xAB0)
    True
    """
    return header & ~(SEALED | _SLICES) if header & SEALED else header


class Replaced(NamedTuple):
    """A filter in whose place another one is put.

    Attributes:
        shards: How many it has.
        format: How it is stored, which says where its shards lie.
        header: That of its shards.
    """

    shards: int
    format: int
    header: int

    @classmethod
    def of(cls, descriptor: Descriptor) -> Replaced:
        """Return what is to be known of a filter to delete its shards."""
        return cls(descriptor.size.shards, descriptor.format, descriptor.header)

    def place(self, keys: FilterKeys) -> FilterKeys:
        """Return the filter's keys with its shards where they lie."""
        return keys.spread(self.shards if self.format >= SPREAD_FORMAT else None)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What every client of a filter must agree on.

    Attributes:
        capacity: Distinct items the filter is sized for, n.
        error_rate: False-positive rate at that fill, p.
        size: Bits, hash functions and shards.
        seeds: One Murmur3 seed for each hash function; None: default hashing.
        layout: Where the bits of an item may lie: "classic", anywhere in its shard, "blocked", in
            one block of 64 bytes, or "native", where the server puts them (BF.*).
        generation: Changes whenever the filter is cleared or replaced; never 0.
        state: "ready"; "creating" while shards are initialised; "copying" while a copy fills;
            "replacing" while prepared shards take the places of those of the last generation;
            "renaming" while all is copied to another name; "preparing" while a filter that is to
            come is prepared at other keys, "placing" while those are renamed; "closed" while
            it takes no updates because another one comes.
        cleared: Whether the generation began with a clear. False: no filter was there, or it had
            lost something.
        key: What the offsets depend on; None: on the item alone.
        format: How it is stored.
        idle_ms: After how many milliseconds without use it is forgotten; None: never.
        window: How long items are remembered; None: for ever. The bits of `size` are cells then.
        replaces: What is deleted when the filter is in its place.
        growth: How it grows; None: not at all.
        slices: All that it can have if it grows; `size` is the first one's.
        follows: The headers of generations whose items are all in this one; what is attached to one
            of those goes on with this one.
        forgets: Whether items may have been forgotten, as the header of the first shard says; no
            part of what is stored.
    """

    capacity: int
    error_rate: float
    size: Size
    seeds: tuple[int, ...] | None = None
    layout: str = CLASSIC
    generation: int = 0
    state: str = READY
    cleared: bool = False
    key: HashKey | None = None
    format: int = FORMAT
    idle_ms: int | None = None
    window: Window | None = None
    replaces: Replaced | None = None
    growth: Growth | None = None
    slices: tuple[Slice, ...] = ()
    follows: tuple[int, ...] = field(default=(), compare=False)
    forgets: bool = field(default=False, compare=False)

    @property
    def header(self) -> int:
        """The header every shard of this generation starts with."""
        return header_of(self.generation)

    def has_header(self, header: int) -> bool:
        """Return whether a shard of this generation may have a header: it may have grown."""
        if not self.slices:
            return header == self.header
        return without_slices(header) == self.header and slices_of(header) <= len(self.slices)

    @property
    def most_items(self) -> int:
        """Items that it can hold at its rate, with all slices if it grows."""
        return sum(part.capacity for part in self.slices) or self.capacity

    def place(self, keys: FilterKeys) -> FilterKeys:
        """Return the filter's keys with its shards where they lie in this format."""
        return keys.spread(self.size.shards if self.format >= SPREAD_FORMAT else None)

    @property
    def is_native(self) -> bool:
        """Whether the server has the filter itself (BF.*), and places the items."""
        return self.layout == NATIVE

    @property
    def cell_bits(self) -> int:
        """Bits of each place that an item has: one, or with a window one for each slice."""
        return self.window.cell_bits if self.window is not None else 1

    @property
    def num_bits(self) -> int:
        """Bits of all shards together."""
        return self.size.num_bits * self.cell_bits

    @property
    def string_bytes(self) -> int:
        """Length of the string of a shard that is a bitmap or has cells."""
        state_bytes = STATE_BYTES if self.window is not None else 0
        return HEADER_BYTES + state_bytes + (self.size.shard_bits * self.cell_bits + 7) // 8

    def string_bytes_with(self, header: int) -> int:
        """Return the length of the string of a shard that has a header of this generation."""
        return self.slices[slices_of(header) - 1].end_byte if self.slices else self.string_bytes

    @property
    def formulas(self) -> Formulas:
        """Rates and estimates as they hold for its layout."""
        return LAYOUTS[self.layout]

    def error_rate_at_fill(self, fill_ratio: float) -> float:
        """Return the chance that an item never added finds all its bits set."""
        size = self.size
        rate = self.formulas.error_rate_at_fill(fill_ratio, size.num_hashes)
        if self.is_native:
            # Instead of filling up it grows.
            return min(rate, self.error_rate)
        if self.layout != CLASSIC or self.seeds:
            return rate
        whole = sizing.whole_collisions(fill_ratio, size.shard_bits, size.num_hashes)
        return min(1.0, rate + whole)

    def hasher(self) -> Hasher:
        """Return the hasher that places items in this filter; its key has to be known."""
        size, key = self.size, self.key
        if self.is_native:
            return Unplaced(size.shard_bits, size.num_hashes, size.shards)
        if key is not None and key.secret is None:
            raise ConfigurationError("the filter has a key, which was not given")
        if self.slices:
            shapes = [(part.first, part.bits, part.num_hashes) for part in self.slices]
            return Chained(shapes, size.shards, key=key.secret if key is not None else None)
        return Hasher(
            size.shard_bits,
            size.num_hashes,
            size.shards,
            self.seeds,
            self.layout,
            key=key.secret if key is not None else None,
        )

    def with_key(self, given: HashKey | None) -> Descriptor:
        """Return the same with the secret of the key filled in, which is known to fit."""
        if self.key is None or self.key.secret is not None:
            return self
        return replace(self, key=given)

    def with_generation(self, generation: int, state: str, *, cleared: bool = False) -> Descriptor:
        """Return the same parameters for another generation."""
        return replace(
            self,
            generation=generation,
            state=state,
            cleared=cleared,
            replaces=None,
            follows=(),
            forgets=False,
        )

    def has_all_of(self, header: int) -> bool:
        """Return whether this is the generation with a header, or follows it."""
        return header == self.header or header in self.follows

    def successor_of(self, before: Descriptor) -> Descriptor:
        """Return the same as what comes after a generation, with all its items."""
        follows = (*before.follows, before.header)
        return replace(self, follows=follows[-MOST_FOLLOWED:])

    def same_bits(self, other: Descriptor) -> bool:
        """Return whether an item has the same offsets in both."""
        mine = (self.size, self.seeds, self.layout, self.key, self.window, self.slices)
        theirs = (other.size, other.seeds, other.layout, other.key, other.window, other.slices)
        return mine == theirs


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters a caller asks for, checked."""

    capacity: int
    error_rate: float
    seeds: tuple[int, ...] | None
    shards: int | None
    layout: str = CLASSIC
    key: HashKey | None = None
    num_hashes: int | None = None
    optimize: Optimize | None = None
    idle_ms: int | None = None
    window: Window | None = None
    growth: Growth | None = None

    @classmethod
    def check(
        cls,
        capacity: object,
        error_rate: object,
        seeds: object = None,
        shards: object = None,
        layout: object = CLASSIC,
        *,
        key: object = None,
        num_hashes: object = None,
        optimize: object = None,
        native: bool = False,
        window: object = None,
        slices: object = None,
        grows: bool = False,
        growth: object = None,
        up_to: object = None,
    ) -> Wanted:
        """Check every parameter; raises ConfigurationError on the first that is not usable.

        A `native` filter is one that the server has itself.
        """
        refused = {"seeds": seeds, "window": window, "slices": slices}
        _check_grows(grows, {"growth": growth, "up_to": up_to}, refused, layout, native)
        if native:
            check_layout(layout)
            given = {"seeds": seeds, "num_hashes": num_hashes, "optimize": optimize}
            defaults = {"layout": CLASSIC}
            for name, value in {"layout": layout, **given}.items():
                default = defaults.get(name)
                if value != default:
                    raise ConfigurationError(
                        f"{name} must be {default!r}, the default, with strategy='native', where "
                        f"the server hashes the items and places their bits, not {value!r:.80}"
                    )
            refuse_key(key)
        checked_window = check_window(window, slices)
        if checked_window is not None and (native or layout != CLASSIC):
            what = f"layout must be {CLASSIC!r}" if not native else "strategy must be 'atomic'"
            given_as = "'native'" if native else f"{layout!r:.80}"
            raise ConfigurationError(f"{what} with window=, not {given_as}")
        if key is not None and seeds is not None:
            raise ConfigurationError(
                "seeds must be None with a key, which all offsets of an item come from, "
                f"not {seeds!r:.80}"
            )
        if num_hashes is not None and seeds is not None:
            raise ConfigurationError(
                f"num_hashes must be None with seeds, of which each is one, not {num_hashes!r:.80}"
            )
        if optimize is not None and not seeds is num_hashes is None:
            other = "seeds" if num_hashes is None else "num_hashes"
            raise ConfigurationError(
                f"optimize must be None with {other}, which fixes the number of hash functions, "
                f"not {optimize!r:.80}"
            )
        wanted = cls(
            check_capacity(capacity),
            check_error_rate(error_rate),
            check_seeds(seeds),
            check_shards(shards),
            NATIVE if native else check_layout(layout, seeds),
            check_key(key),
            check_num_hashes(num_hashes, float(error_rate)),  # type: ignore[arg-type]  # checked above
            check_optimize(optimize),
            window=checked_window,
            growth=check_growth(growth, up_to, check_capacity(capacity)) if grows else None,
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
            descriptor.key,
            None if descriptor.seeds else descriptor.size.num_hashes,
            idle_ms=descriptor.idle_ms,
            window=descriptor.window,
            growth=descriptor.growth,
        )

    def describe(self) -> Descriptor:
        """Return the descriptor of a new filter with these parameters, its generation still 0."""
        if self.growth is not None:
            return self._describe_growing(self.growth)
        try:
            size = self._size(self.optimize or BALANCED)
        except ConfigurationError:
            if self.seeds or self.num_hashes or self.optimize:
                raise
            # The largest filters fit in no other way.
            size = self._size(MEMORY)
        return Descriptor(
            self.capacity,
            self.error_rate,
            size,
            self.seeds,
            self.layout,
            key=self.key,
            idle_ms=self.idle_ms,
            format=FORMAT if self.window is None else WINDOW_FORMAT,
            window=self.window,
        )

    def _describe_growing(self, grows: Growth) -> Descriptor:
        hashes = self._hashes(self.optimize or BALANCED)
        shards = self.shards
        if shards is None:
            rate = slice_error_rate(self.error_rate, 0)
            shards = usual_shards(sizing.size_for(self.capacity, rate, num_hashes=hashes))
            shards = growth.shards_for(self.capacity, self.error_rate, hashes, shards, grows)
        slices = growth.slices_for(self.capacity, self.error_rate, hashes, shards, grows)
        return Descriptor(
            self.capacity,
            self.error_rate,
            Size(slices[0].bits, hashes, shards),
            key=self.key,
            format=GROWING_FORMAT,
            idle_ms=self.idle_ms,
            growth=grows,
            slices=slices,
        )

    def _size(self, optimize: Optimize) -> Size:
        if self.window is not None:
            return self.window.size_for(
                self.capacity,
                self.error_rate,
                num_hashes=self._hashes(optimize),
                shards=self.shards,
                seeded=self.seeds is not None,
            )
        size_for = partial(
            LAYOUTS[self.layout].size_for,
            self.capacity,
            self.error_rate,
            num_hashes=self._hashes(optimize),
            seeded=self.seeds is not None,
        )
        size = size_for(shards=self.shards)
        # What the server has itself is no string that bitmaps are merged into.
        is_split = self.shards is None and self.layout != NATIVE
        if is_split and (shards := usual_shards(size)) > size.shards:
            size = size_for(shards=shards)
        return size

    def _hashes(self, optimize: Optimize) -> int:
        if self.seeds:
            return len(self.seeds)
        if self.window is not None and not self.num_hashes:
            return self.window.num_hashes(self.error_rate, optimize)
        rate = self.error_rate if self.growth is None else slice_error_rate(self.error_rate, 0)
        return self.num_hashes or LAYOUTS[self.layout].best_num_hashes(rate, optimize)

    def differences(self, stored: Descriptor) -> list[str]:
        """Return "parameter: stored X, asked Y" for each parameter that differs.

        What was not asked for, k, the number of shards and the idle time, is taken as it is stored.
        """
        pairs = [
            ("capacity", stored.capacity, self.capacity),
            ("error_rate", stored.error_rate, self.error_rate),
            ("layout", stored.layout, self.layout),
            ("seeds", stored.seeds, self.seeds),
            ("shards", stored.size.shards, self.shards or stored.size.shards),
            ("window", stored.window, self.window),
            (
                "num_hashes",
                stored.size.num_hashes,
                self.num_hashes or stored.size.num_hashes,
            ),
        ]
        if self.idle_ms is not None:
            stored_s = None if stored.idle_ms is None else stored.idle_ms / 1000
            pairs.append(("idle_ttl", stored_s, self.idle_ms / 1000))
        mine, other = self.growth or Growth(0), stored.growth or Growth(0)
        pairs += [
            ("growth", other.factor or None, mine.factor or None),
            ("up_to", other.up_to, mine.up_to),
        ]
        found = [f"{what}: stored {old}, asked {new}" for what, old, new in pairs if old != new]
        if self.optimize and (asked := self._hashes(self.optimize)) != stored.size.num_hashes:
            found.append(
                f"optimize: stored {stored.size.num_hashes} hash functions, asked {asked} by "
                f"{self.optimize!r}"
            )
        other_key = key_difference(stored.key, self.key, opens=False)
        return found if other_key is None else [*found, other_key]


def _check_grows(
    grows: bool, given: dict[str, object], refused: dict[str, object], layout: object, native: bool
) -> None:
    """Raise ConfigurationError for what does not go with growth, or makes no sense without it."""
    if not grows:
        for name, value in given.items():
            if value is not None:
                raise ConfigurationError(
                    f"{name} must be None unless on_full='grow', not {value!r:.80}"
                )
        return
    if native:
        raise ConfigurationError(
            "on_full must be 'warn' or 'raise' with strategy='native', where the server's filter "
            "grows by itself, not 'grow'"
        )
    for name, value in refused.items():
        if value is not None:
            raise ConfigurationError(
                f"{name} must be None with on_full='grow', where slices differ in size and number "
                f"of hash functions, not {value!r:.80}"
            )
    if check_layout(layout) != CLASSIC:
        raise ConfigurationError(
            f"layout must be {CLASSIC!r} with on_full='grow', not {layout!r:.80}"
        )


def refuse_key(key: object) -> None:
    """Raise ConfigurationError if there is a key, for a filter that the server has itself."""
    if key is not None:
        raise ConfigurationError(
            "key must be None with strategy='native', where the server hashes the items and takes "
            "no key"
        )


def encode(descriptor: Descriptor) -> dict[str, str]:
    """Return the fields of the descriptor's hash.

    >>> encode(Wanted.check(1000, 0.01).describe().with_generation(7, READY))["capacity"]
    '1000'
    """
    key = descriptor.key
    values = [
        descriptor.format,
        descriptor.capacity,
        repr(descriptor.error_rate),
        descriptor.size.shard_bits,
        descriptor.size.num_hashes,
        descriptor.size.shards,
        ",".join(map(str, descriptor.seeds or ())),
        descriptor.layout,
        descriptor.generation,
        descriptor.state,
    ]
    fields = dict(zip(FIELDS, map(str, values), strict=False))
    if descriptor.cleared:
        fields[CLEARED] = "1"
    if descriptor.idle_ms is not None:
        fields[IDLE] = str(descriptor.idle_ms)
    if key is not None:
        fields[KEY] = f"{key.kind}:{_written(key)}"
    if descriptor.window is not None:
        fields[WINDOW] = descriptor.window.written
    if descriptor.replaces is not None:
        fields[REPLACES] = ":".join(map(str, descriptor.replaces))
    if descriptor.follows:
        fields[FOLLOWS] = ",".join(map(str, descriptor.follows))
    if descriptor.growth is not None:
        fields[GROWTH] = str(descriptor.growth.factor)
        if descriptor.growth.up_to is not None:
            fields[UP_TO] = str(descriptor.growth.up_to)
        fields[SLICES] = _shapes(descriptor)
    return fields


def _shapes(descriptor: Descriptor) -> str:
    return ",".join(f"{part.bits}/{part.num_hashes}" for part in descriptor.slices)


def _written(key: HashKey) -> str:
    """Return what is stored of a key: a secret that users bring never is."""
    return key.secret.hex() if key.stored and key.secret is not None else key.check


def decode(name: str, values: Sequence[bytes | None]) -> Descriptor | None:
    """Return the descriptor from the values of FIELDS, None if there is none at all.

    Raises:
        FilterMismatchError: If it is of a newer format, cannot be read, or contradicts itself.

    Cost: that of computing the size; in the blocked layout up to 0.1 s, once for each rate.
    """
    if all(value is None for value in values):
        return None
    refuse_newer_format(name, values)
    try:
        return _decode_fields(_texts(values))
    except KeyError as error:
        why = f"its field {error} is missing"
    except (ValueError, ConfigurationError) as error:
        why = f"{error!s:.300}"
    raise FilterMismatchError(f"filter {name!r} has a damaged descriptor ({why})")


def refuse_newer_format(name: str, values: Sequence[bytes | None]) -> None:
    """Raise FilterMismatchError if the values of FIELDS are of a newer format."""
    written = _texts(values).get("format", "")
    if _is_whole(written) and int(written) > LATEST_FORMAT:
        raise FilterMismatchError(
            f"filter {name!r} is stored in format {written}, and this version of bloomlock "
            f"reads formats up to {LATEST_FORMAT}; upgrade bloomlock"
        )


def refuse_unknown_flags(name: str, header: int, descriptor: Descriptor | None = None) -> None:
    """Raise FilterMismatchError if a header carries flags that this version does not know.

    Those that the descriptor, where it is known, has no use for are unknown as well.
    """
    if not is_header(header):
        return
    if has_unknown_flags(header) or (
        descriptor is not None and header & SEALED and not descriptor.slices
    ):
        raise FilterMismatchError(
            f"filter {name!r} is in a state that only a newer version of bloomlock knows; "
            "upgrade bloomlock"
        )


def _texts(values: Sequence[bytes | None]) -> dict[str, str]:
    return {
        key: value.decode("utf-8", "replace")
        for key, value in zip(FIELDS, values, strict=True)
        if value is not None
    }


def _check_latest(fields: Mapping[str, str], written_as: int) -> None:
    """Raise ConfigurationError if what the latest format is for is missing, or stands elsewhere."""
    found = [name for name in (WINDOW, GROWTH) if name in fields]
    if len(found) != (written_as == LATEST_FORMAT):
        raise ConfigurationError(
            f"a window, or growth, belongs to format {LATEST_FORMAT}, and to no other"
        )


def _decode_fields(fields: Mapping[str, str]) -> Descriptor:
    written_as = _whole(fields, "format", LATEST_FORMAT)
    _check_latest(fields, written_as)
    if written_as < FORMAT and (written_as == KEYED_FORMAT) != (KEY in fields):
        raise ConfigurationError(f"a key belongs to format {KEYED_FORMAT}, and none to format 1")
    is_native = fields["layout"] == NATIVE
    if is_native and (written_as < FORMAT or KEY in fields or fields["seeds"]):
        raise ConfigurationError(
            f"layout {NATIVE!r} has format {FORMAT}, and neither key nor seeds"
        )
    size = Size(
        _whole(fields, "shard_bits", MAX_NATIVE_BITS if is_native else MAX_SHARD_BITS),
        _whole(fields, "num_hashes", MAX_HASHES),
        _whole(fields, "shards", MAX_SHARDS),
    )
    written = fields["seeds"].split(",") if fields["seeds"] else []
    seeds = check_seeds([int(seed) for seed in written if _is_whole(seed)] if written else None)
    if seeds and len(seeds) != len(written):
        raise ConfigurationError(f"seeds must be whole numbers, not {fields['seeds']!r:.80}")
    if fields["state"] not in STATES:
        raise ConfigurationError(
            f"state must be {', '.join(STATES[:-1])} or {STATES[-1]} in this version of bloomlock, "
            f"not {fields['state']!r:.80}"
        )
    descriptor = Descriptor(
        _whole(fields, "capacity", MAX_CAPACITY),
        check_error_rate(float(fields["error_rate"])),
        size,
        seeds,
        NATIVE if is_native else check_layout(fields["layout"], seeds),
        _whole(fields, "generation", 2**GENERATION_BITS - 1),
        fields["state"],
        fields.get(CLEARED) == "1",
        _key(fields[KEY]) if KEY in fields else None,
        written_as,
        _whole(fields, IDLE, MOST_IDLE_MS) if IDLE in fields else None,
        read_window(fields[WINDOW]) if WINDOW in fields else None,
        _replaced(fields[REPLACES]) if REPLACES in fields else None,
        _growth(fields),
        follows=_followed(fields[FOLLOWS]) if FOLLOWS in fields else (),
    )
    if descriptor.window is not None and descriptor.layout != CLASSIC:
        raise ConfigurationError(f"a window belongs to layout {CLASSIC!r}")
    if descriptor.key is not None and seeds:
        raise ConfigurationError("a filter has seeds or a key, not both")
    if descriptor.growth is not None:
        return _with_slices(descriptor, fields)
    # Other numbers would send each item to other bits than the writer's, without any error.
    wanted = Wanted.of(descriptor)
    if descriptor.format < FORMAT:
        wanted = replace(wanted, num_hashes=None, optimize=MEMORY)
    expected = wanted.describe().size
    if size not in (expected, _size_by_formula(descriptor)):
        raise ConfigurationError(
            f"shard_bits {size.shard_bits} and num_hashes {size.num_hashes} are not those of its "
            f"capacity and error_rate, {expected.shard_bits} and {expected.num_hashes}"
        )
    return descriptor


def _growth(fields: Mapping[str, str]) -> Growth | None:
    if GROWTH not in fields:
        return None
    if fields["layout"] != CLASSIC or fields["seeds"]:
        raise ConfigurationError(f"a filter that grows has layout {CLASSIC!r} and no seeds")
    up_to = _whole(fields, UP_TO, MAX_CAPACITY) if UP_TO in fields else None
    capacity = _whole(fields, "capacity", MAX_CAPACITY)
    return check_growth(_whole(fields, GROWTH, growth.MAX_GROWTH), up_to, capacity)


def _with_slices(descriptor: Descriptor, fields: Mapping[str, str]) -> Descriptor:
    """Return the same with its slices, which must be those that are stored."""
    expected = Wanted.of(descriptor).describe()
    if expected.size != descriptor.size or _shapes(expected) != fields[SLICES]:
        raise ConfigurationError(
            f"slices {fields[SLICES]:.80} are not those of its capacity, error_rate and growth, "
            f"{_shapes(expected):.80}"
        )
    return replace(descriptor, slices=expected.slices)


def _key(text: str) -> HashKey:
    kind, _, written = text.partition(":")
    if _HEXADECIMAL.fullmatch(written):
        if kind == "secret" and len(written) == 2 * DIGEST_BYTES:
            return HashKey(written, stored=False)
        if kind == "random" and MIN_KEY_BYTES <= len(written) // 2 <= MAX_KEY_BYTES:
            return HashKey.of(bytes.fromhex(written), stored=True)
    raise ConfigurationError(f"key must be random or secret and in hexadecimal, not {kind!r:.20}")


def _replaced(text: str) -> Replaced:
    """Return a filter that is replaced, from its number of shards, format and header."""
    numbers = text.split(":")
    if len(numbers) != len(Replaced._fields) or not all(map(_is_long, numbers)):
        raise ConfigurationError(f"replaces must be three whole numbers, not {text!r:.80}")
    found = Replaced(*map(int, numbers))
    if not 1 <= found.shards <= MAX_SHARDS:
        raise ConfigurationError(f"replaces must name 1 to {MAX_SHARDS} shards, not {text!r:.80}")
    return found


def _followed(text: str) -> tuple[int, ...]:
    headers = text.split(",")
    if len(headers) > MOST_FOLLOWED or not all(map(_is_long, headers)):
        raise ConfigurationError(
            f"follows must be at most {MOST_FOLLOWED} whole numbers, not {text!r:.80}"
        )
    return tuple(map(int, headers))


def _size_by_formula(descriptor: Descriptor) -> Size | None:
    """Return the size that the first formats had for these parameters, if it may be another."""
    if descriptor.layout != CLASSIC or descriptor.format >= FORMAT:
        return None
    return sizing.size_for(
        descriptor.capacity,
        descriptor.error_rate,
        num_hashes=len(descriptor.seeds)
        if descriptor.seeds
        else sizing.best_num_hashes(descriptor.error_rate, MEMORY),
        shards=descriptor.size.shards,
        by_formula=True,
    )


def _whole(fields: Mapping[str, str], name: str, most: int) -> int:
    text = fields[name]
    if not _is_whole(text) or not 1 <= int(text) <= most:
        raise ConfigurationError(
            f"{name} must be a whole number from 1 to {most}, not {text!r:.80}"
        )
    return int(text)


def _is_long(text: str) -> bool:
    return re.fullmatch("[0-9]{1,20}", text) is not None


def _is_whole(text: str) -> bool:
    return _WHOLE.fullmatch(text) is not None


class Formulas(Protocol):
    """What a layout says about sizes and rates; `sizing` and `blocked` document the functions."""

    def best_num_hashes(self, error_rate: float, optimize: Optimize) -> int:
        """Return the fewest hash functions that are good enough."""

    def size_for(
        self,
        capacity: int,
        error_rate: float,
        *,
        num_hashes: int | None = None,
        shards: int | None = None,
        seeded: bool = False,
    ) -> Size:
        """Return the smallest filter that holds `capacity` items at `error_rate`."""

    def expected_error_rate(self, count: float, num_bits: int, num_hashes: int) -> float:
        """Return the false-positive rate after `count` distinct items."""

    def error_rate_at_fill(self, fill_ratio: float, num_hashes: int) -> float:
        """Return the false-positive rate of a filter with this part of its bits set."""

    def estimate_count(self, bits_set: float, num_bits: int, num_hashes: int) -> float:
        """Return the number of distinct items from the number of set bits."""

    def estimate_deviation(
        self, capacity: float, num_bits: int, num_hashes: int, sampled_bits: int
    ) -> float:
        """Return the standard deviation of `estimate_count` at capacity."""


LAYOUTS: Mapping[str, Formulas] = {CLASSIC: sizing, BLOCKED: blocked, NATIVE: native}


def check_layout(layout: object, seeds: object = None) -> str:
    """Return `layout`, or raise ConfigurationError.

    >>> check_layout("blocked")
    'blocked'
    """
    choices = [name for name in LAYOUTS if name != NATIVE]
    if not isinstance(layout, str) or layout not in choices:
        known = " or ".join(map(repr, choices))
        raise ConfigurationError(f"layout must be {known}, not {layout!r:.80}")
    if layout == BLOCKED and seeds is not None:
        raise ConfigurationError(
            "seeds must be None with layout='blocked', which takes all bits of an item from one "
            f"digest, not {seeds!r:.80}"
        )
    return layout
