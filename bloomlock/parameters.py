"""The parameters that a caller asks for: checked, described, compared with stored ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from . import growth, native, sizing
from .descriptor import Descriptor, Formulas
from .errors import ConfigurationError
from .growth import Growth, check_growth, slice_error_rate
from .hash_keys import HashKey, check_key, check_seeds, key_difference
from .sizing import (
    BALANCED,
    MEMORY,
    Optimize,
    Size,
    check_capacity,
    check_error_rate,
    check_num_hashes,
    check_optimize,
    check_shards,
    usual_shards,
)
from .windows import Window, check_window


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters a caller asks for, checked."""

    capacity: int
    error_rate: float
    seeds: tuple[int, ...] | None
    shards: int | None
    formulas: Formulas = field(default=sizing, repr=False)
    key: HashKey | None = None
    num_hashes: int | None = None
    optimize: Optimize | None = None
    window: Window | None = None
    growth: Growth | None = None

    @classmethod
    def check(
        cls,
        capacity: object,
        error_rate: object,
        seeds: object = None,
        shards: object = None,
        *,
        key: object = None,
        num_hashes: object = None,
        optimize: object = None,
        formulas: Formulas = sizing,
        window: object = None,
        slices: object = None,
        grows: bool = False,
        growth: object = None,
        up_to: object = None,
    ) -> Wanted:
        """Check every parameter; raises ConfigurationError on the first that is not usable."""
        if grows:
            _refuse_with_growth({"seeds": seeds, "window": window}, formulas)
        if formulas is native:
            given = {"seeds": seeds, "num_hashes": num_hashes, "optimize": optimize}
            for name, value in given.items():
                if value is not None:
                    raise ConfigurationError(
                        f"{name} must be None, the default, with strategy='native', where the "
                        f"server hashes the items and places their bits, not {value!r:.80}"
                    )
            refuse_key(key)
        checked_window = check_window(window, slices)
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
            formulas,
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
            descriptor.formulas,
            descriptor.key,
            None if descriptor.seeds else descriptor.size.num_hashes,
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
            self.formulas,
            key=self.key,
            window=self.window,
            slices=self.window.ring(self.capacity, self.error_rate, size) if self.window else (),
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
            self.formulas.size_for,
            self.capacity,
            self.error_rate,
            num_hashes=self._hashes(optimize),
            seeded=self.seeds is not None,
        )
        size = size_for(shards=self.shards)
        if self.shards is None and (shards := self.formulas.usual_shards(size)) > size.shards:
            size = size_for(shards=shards)
        return size

    def _hashes(self, optimize: Optimize) -> int:
        if self.seeds:
            return len(self.seeds)
        if self.window is not None and not self.num_hashes:
            return self.window.num_hashes(self.error_rate, optimize)
        rate = self.error_rate if self.growth is None else slice_error_rate(self.error_rate, 0)
        if self.num_hashes:
            return self.num_hashes
        return self.formulas.best_num_hashes(rate, optimize)

    def differences(self, stored: Descriptor) -> list[str]:
        """Return "parameter: stored X, asked Y" for each parameter that differs.

        What was not asked for, k and the number of shards, is taken as it is stored.
        """
        pairs = [
            ("capacity", stored.capacity, self.capacity),
            ("error_rate", stored.error_rate, self.error_rate),
            ("seeds", stored.seeds, self.seeds),
            ("shards", stored.size.shards, self.shards or stored.size.shards),
            ("window", stored.window, self.window),
            (
                "num_hashes",
                stored.size.num_hashes,
                self.num_hashes or stored.size.num_hashes,
            ),
        ]
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


def _refuse_with_growth(refused: dict[str, object], formulas: Formulas) -> None:
    """Raise ConfigurationError for what does not go with growth."""
    if formulas is native:
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


def refuse_key(key: object) -> None:
    """Raise ConfigurationError if there is a key, for a filter that the server has itself."""
    if key is not None:
        raise ConfigurationError(
            "key must be None with strategy='native', where the server hashes the items and takes "
            "no key"
        )
