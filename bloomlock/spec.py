"""The parameters of a filter: requested, checked, compared, stored. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from . import sizing
from .descriptor import (
    GENERATION_BITS,
    ORIGINS,
    STATES,
    Descriptor,
    Replaced,
    has_unknown_flags,
    is_header,
)
from .errors import ConfigurationError, FilterMismatchError
from .hash_keys import HashKey, check_key, check_seeds, key_difference, read_key
from .sizing import MAX_CAPACITY, MAX_SHARDS, Optimize, Size
from .slices import (
    Growth,
    Ring,
    Window,
    check_growth,
    check_window,
    growing_slices,
    slice_error_rate,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .slices import Slice


@dataclass(frozen=True, slots=True)
class RequestedSpec:
    """The parameters a caller asks for, checked; None: as many as are usual."""

    capacity: int
    error_rate: float
    seeds: tuple[int, ...] | None = None
    shards: int | None = None
    native: bool = False
    key: HashKey | None = None
    num_hashes: int | None = None
    optimize: Optimize | None = None
    window: Ring | None = None
    growth: Growth | None = None

    @classmethod
    def check(
        cls,
        capacity: object,
        error_rate: object,
        *,
        seeds: object = None,
        shards: object = None,
        key: object = None,
        num_hashes: object = None,
        optimize: object = None,
        native: bool = False,
        window: Window | timedelta | float | None = None,
        growth: Growth | None = None,
    ) -> RequestedSpec:
        """Check every parameter; that no filter is so large is known when it is described."""
        if growth is not None:
            if native:
                raise ConfigurationError(
                    "on_full must be 'warn' or 'raise' with strategy='native', where the server's "
                    "filter grows by itself, not 'grow'"
                )
            _refuse(
                " with on_full='grow', where slices differ in size and number of hash functions",
                seeds=seeds,
                window=window.length if isinstance(window, Window) else window,
            )
        if native:
            _refuse(
                ", the default, with strategy='native', where the server hashes the items and "
                "places their bits",
                seeds=seeds,
                num_hashes=num_hashes,
                optimize=optimize,
            )
            refuse_key(key)
        ring = check_window(window) if window is not None else None
        if key is not None:
            _refuse(" with a key, which all offsets of an item come from", seeds=seeds)
        if seeds is not None:
            _refuse(" with seeds, of which each is one", num_hashes=num_hashes)
        if not seeds is num_hashes is None:
            other = "seeds" if num_hashes is None else "num_hashes"
            _refuse(f" with {other}, which fixes the number of hash functions", optimize=optimize)
        whole, rate = sizing.check_whole, sizing.check_error_rate(error_rate)
        items = whole("capacity", capacity, 1, MAX_CAPACITY, "of items from 1 to 10^15")
        allowed = f"from 1 to {MAX_SHARDS} or None"
        return cls(
            items,
            rate,
            check_seeds(seeds),
            None if shards is None else whole("shards", shards, 1, MAX_SHARDS, allowed),
            native,
            check_key(key),
            sizing.check_num_hashes(num_hashes, rate),
            sizing.check_optimize(optimize),
            ring,
            None if growth is None else check_growth(growth, items),
        )

    @classmethod
    def of(cls, descriptor: Descriptor) -> RequestedSpec:
        return cls(
            descriptor.capacity,
            descriptor.error_rate,
            descriptor.seeds,
            descriptor.size.shards,
            descriptor.native,
            descriptor.key,
            None if descriptor.seeds else descriptor.size.num_hashes,
            window=descriptor.window,
            growth=descriptor.growth,
        )

    def describe(self) -> Descriptor:
        """Return the descriptor of a new filter with these parameters, its generation still 0."""
        size, slices = self._sizes()
        return Descriptor(
            self.capacity,
            self.error_rate,
            size,
            self.seeds,
            self.native,
            key=self.key,
            window=self.window,
            growth=self.growth,
            slices=slices,
        )

    def _sizes(self) -> tuple[Size, tuple[Slice, ...]]:
        capacity, rate, shards = self.capacity, self.error_rate, self.shards
        if self.native:
            return sizing.native_size_for(capacity, rate, shards), ()
        hashes = self._hashes(self.optimize or sizing.BALANCED)
        if self.growth is not None:
            return growing_slices(capacity, rate, hashes, shards, self.growth)
        if self.window is not None:
            return self.window.slices_for(capacity, rate, hashes, shards)
        return sizing.size_for(capacity, rate, num_hashes=hashes, shards=shards), ()

    def _hashes(self, optimize: Optimize) -> int:
        if self.seeds or self.num_hashes:
            return self.num_hashes or len(self.seeds or ())
        rate = self.error_rate
        if self.window is not None:
            rate = self.window.slice_rate(rate)
        elif self.growth is not None:
            rate = slice_error_rate(rate, 0)
        return sizing.best_num_hashes(rate, optimize)

    def differences(self, stored: Descriptor) -> list[str]:
        """Return "parameter: stored X, asked Y" for each parameter that differs."""
        size, mine, other = stored.size, self.growth or Growth(0), stored.growth or Growth(0)
        pairs = [
            ("capacity", stored.capacity, self.capacity),
            ("error_rate", stored.error_rate, self.error_rate),
            ("seeds", stored.seeds, self.seeds),
            ("shards", size.shards, self.shards or size.shards),
            ("window", stored.window, self.window),
            ("num_hashes", size.num_hashes, self.num_hashes or size.num_hashes),
            ("growth", other.factor or None, mine.factor or None),
            ("up_to", other.up_to, mine.up_to),
        ]
        found = [f"{what}: stored {old}, asked {new}" for what, old, new in pairs if old != new]
        if self.optimize and (asked := self._hashes(self.optimize)) != size.num_hashes:
            found.append(
                f"optimize: stored {size.num_hashes} hash functions, asked {asked} by "
                f"{self.optimize!r}"
            )
        other_key = key_difference(stored.key, self.key, opens=False)
        return found if other_key is None else [*found, other_key]


def _refuse(why: str, **parameters: object) -> None:
    for name, value in parameters.items():
        if value is not None:
            raise ConfigurationError(f"{name} must be None{why}, not {value!r:.80}")


def refuse_key(key: object) -> None:
    if key is not None:
        raise ConfigurationError(
            "key must be None with strategy='native', where the server hashes the items and takes "
            "no key"
        )


# -- as it is stored: the fields of a hash ---------------------------------------------------------

FORMAT = 1

FIELDS = (
    "format",
    "capacity",
    "error_rate",
    "shard_bits",
    "num_hashes",
    "shards",
    "seeds",
    "generation",
    "state",
    "origin",
    "native",  # of one that the server has itself
    "key",  # "random:" and the key, or "secret:" and its check
    "window",  # its microseconds, a slash, its slices
    "replaces",  # of one that is put in the place of another: its shards and their header
    "root",  # of a rebuilt one
    "growth",
    "up_to",
    "slices",  # of one that grows, "m/k" each; written to be compared
)


class DamagedDescriptorError(FilterMismatchError):
    """A descriptor that cannot be read: nobody knows how many shards the filter has."""


def encode(descriptor: Descriptor) -> dict[str, str]:
    size, key = descriptor.size, descriptor.key
    window, growth = descriptor.window, descriptor.growth
    slices = ",".join(f"{one.bits}/{one.num_hashes}" for one in descriptor.slices)
    fields = {
        "format": FORMAT,
        "capacity": descriptor.capacity,
        "error_rate": repr(descriptor.error_rate),
        "shard_bits": size.shard_bits,
        "num_hashes": size.num_hashes,
        "shards": size.shards,
        "seeds": ",".join(map(str, descriptor.seeds or ())),
        "generation": descriptor.generation,
        "state": descriptor.state,
        "origin": descriptor.origin,
        "native": 1 if descriptor.native else None,
        "key": key.written if key else None,
        "window": f"{window.length_us}/{window.slices}" if window else None,
        "replaces": ":".join(map(str, descriptor.replaces)) if descriptor.replaces else None,
        "root": descriptor.root if descriptor.root != descriptor.generation else None,
        "growth": growth.factor if growth else None,
        "up_to": growth.up_to if growth else None,
        "slices": slices if growth else None,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def decode(name: str, values: Sequence[bytes | None]) -> Descriptor | None:
    """Return the descriptor from the values of FIELDS, None if there is none at all.

    FilterMismatchError if it is of another format, DamagedDescriptorError if it cannot be read.
    """
    fields = {
        field: value.decode("utf-8", "replace")
        for field, value in zip(FIELDS, values, strict=True)
        if value is not None
    }
    if not fields:
        return None
    written = fields.get("format", "")
    if written.isdigit() and written != str(FORMAT):
        raise FilterMismatchError(
            f"filter {name!r} is stored in format {written:.20}, and this version of bloomlock "
            f"reads format {FORMAT} alone; upgrade bloomlock or create the filter again"
        )
    try:
        return _decode_fields(fields)
    except KeyError as error:
        why = f"its field {error} is missing"
    except (ValueError, OverflowError) as error:
        why = f"{error!s:.300}"
    raise DamagedDescriptorError(f"filter {name!r} has a damaged descriptor ({why})")


def refuse_unknown_flags(name: str, header: int) -> None:
    if is_header(header) and has_unknown_flags(header):
        raise FilterMismatchError(
            f"filter {name!r} is in a state that only a newer version of bloomlock knows; "
            "upgrade bloomlock"
        )


def _decode_fields(fields: Mapping[str, str]) -> Descriptor:
    native, seeds, window, growth, replaces = "native" in fields, None, None, None, None
    if fields["seeds"]:
        seeds = [*map(int, fields["seeds"].split(","))]
    if "window" in fields:
        length_us, slices = map(int, fields["window"].split("/"))
        window = Window(timedelta(microseconds=length_us), slices)
    if "growth" in fields:
        growth = Growth(int(fields["growth"]), int(fields["up_to"]) if "up_to" in fields else None)
    spec = RequestedSpec.check(
        int(fields["capacity"]),
        float(fields["error_rate"]),
        seeds=seeds,
        shards=int(fields["shards"]),
        key=read_key(fields["key"]) if "key" in fields else None,
        num_hashes=None if native or seeds else int(fields["num_hashes"]),
        native=native,
        window=window,
        growth=growth,
    )
    for field, known in (("state", STATES), ("origin", ORIGINS)):
        if fields[field] not in known:
            raise ConfigurationError(
                f"{field} must be {', '.join(known[:-1])} or {known[-1]} in this version of "
                f"bloomlock, not {fields[field]!r:.80}"
            )
    most = 2**GENERATION_BITS - 1
    generation = sizing.check_whole("generation", int(fields["generation"]), 1, most)
    if "replaces" in fields:
        replaces = Replaced(*map(int, fields["replaces"].partition(":")[::2]))
        sizing.check_whole("replaces", replaces.shards, 1, MAX_SHARDS, "of shards and a header")
    descriptor = replace(
        spec.describe(),
        generation=generation,
        state=fields["state"],
        origin=fields["origin"],
        root=int(fields.get("root", generation)),
        replaces=replaces,
    )
    # Each field is as a writer with these parameters writes it. With another number of bits each
    # item would be sent to other places than the writer's, without any error.
    expected = encode(descriptor)
    for name in (fields.keys() | expected.keys()) - {"key"}:
        if (stored := fields.get(name)) != expected.get(name):
            raise ConfigurationError(
                f"{name} must be {expected.get(name)!s:.80} by its other parameters, not "
                f"{stored!s:.80}"
            )
    return descriptor
