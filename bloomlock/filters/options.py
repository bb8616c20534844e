"""The options of filters: declared once, and checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from bloomlock.errors import ConfigurationError
from bloomlock.hash_keys import check_key
from bloomlock.keys import DEFAULT_PREFIX
from bloomlock.parameters import Wanted, refuse_key
from bloomlock.runtime.clock import boot_clock
from bloomlock.strategies import SlicedStrategy, make_strategy

from .near_cache import MAX_STALENESS_SECONDS, NearCaching
from .support import GROWTH, WINDOW, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from bloomlock.hash_keys import HashKey
    from bloomlock.sizing import Optimize
    from bloomlock.strategies import Strategy
    from bloomlock.windows import Window

OnFull = Literal["warn", "raise", "grow"]
OnFullHere = Literal["warn", "raise"]
"""Of a filter in the process, which does not grow."""
OnLost = Literal["raise", "recreate"]
OnUnknown = Literal["raise", "new"]


class BitsParameters(TypedDict, total=False):
    """What decides, beside capacity, error rate and key, where the bits of an item lie."""

    seeds: Iterable[int] | None
    num_hashes: int | None
    optimize: Optimize | None
    shards: int | None


class ShapeParameters(BitsParameters, total=False):
    """BitsParameters, and for how long items are remembered."""

    window: timedelta | float | None
    slices: int | None


class GrowthParameters(TypedDict, total=False):
    """What decides, with `on_full="grow"`, how a filter grows."""

    growth: int | None
    up_to: int | None


class OpenParameters(TypedDict, total=False):
    """The options of a filter that is attached to as it is."""

    strategy: str | Strategy
    key: str | bytes | Literal[True] | None
    near_cache: int
    max_staleness: float
    on_full: OnFull
    on_lost: OnLost
    on_unknown: OnUnknown
    prefix: str
    refresh: bool


class FilterParameters(ShapeParameters, GrowthParameters, OpenParameters, total=False):
    """The options of a filter that is created or attached to."""


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """The options of `open`, checked when they are made; see BloomFilter for what they mean.

    Attributes:
        updates: The strategy itself.
        hash_key: The key, checked.
        refuses: Whether a full filter refuses new items.
        caching: How positive answers are kept; None if they are not.
        refresh: Whether the add of an item that is there renews it, in a filter with a window.
        wanted: Parameters of the filter; None: those that it has.

    Raises:
        ConfigurationError: If one of them is not usable.
    """

    strategy: str | Strategy = "atomic"
    key: str | bytes | Literal[True] | None = field(default=None, repr=False)
    near_cache: int = 0
    max_staleness: float = MAX_STALENESS_SECONDS
    on_full: OnFull = "warn"
    on_lost: OnLost = "raise"
    on_unknown: OnUnknown = "raise"
    prefix: str = DEFAULT_PREFIX
    refresh: bool = False
    updates: Strategy = field(init=False)
    hash_key: HashKey | None = field(init=False)
    refuses: bool = field(init=False)
    caching: NearCaching | None = field(init=False)
    wanted: Wanted | None = field(init=False)

    def __post_init__(self) -> None:
        """Check what was given, and work out what follows from it."""
        updates = make_strategy(self.strategy)
        wanted = self._wanted(updates.is_native)
        hash_key = wanted.key if wanted else check_key(self.key)
        if updates.is_native:
            refuse_key(hash_key)
        choice("on_lost", self.on_lost, OnLost)
        choice("on_unknown", self.on_unknown, OnUnknown)
        caching = NearCaching.check(self.near_cache, self.max_staleness, boot_clock)
        if not isinstance(self.refresh, bool):
            raise ConfigurationError(f"refresh must be True or False, not {self.refresh!r:.80}")
        object.__setattr__(self, "wanted", wanted)
        object.__setattr__(self, "hash_key", hash_key)
        object.__setattr__(self, "updates", updates)
        choice("on_full", self.on_full, OnFull)
        object.__setattr__(self, "refuses", self.on_full == "raise")
        object.__setattr__(self, "caching", caching)
        if wanted is not None:
            self.strategy_for(wanted.window)

    def strategy_for(
        self,
        window: Window | None,
        on_epoch: Callable[[str, int, float], None] | None = None,
    ) -> Strategy:
        """Return the strategy for a filter with this window; raise ConfigurationError.

        Args:
            window: The filter's.
            on_epoch: Is given the epochs in which shards answer, if answers are kept; see
                SlicedStrategy.
        """
        if window is None:
            if self.refresh:
                raise ConfigurationError("refresh must be False for a filter without a window")
            return self.updates
        check_support(WINDOW, self.updates.name)
        if self.refuses:
            raise ConfigurationError("on_full must be 'warn' with window=, not 'raise'")
        if self.caching is None:
            on_epoch = None
        return SlicedStrategy(window, refresh=self.refresh, clock=boot_clock, on_epoch=on_epoch)

    def _wanted(self, _native: bool) -> Wanted | None:
        return None


@dataclass(frozen=True, kw_only=True)
class FilterOptions(OpenOptions):
    """The options of a filter that is created or attached to."""

    capacity: int
    error_rate: float
    seeds: Iterable[int] | None = None
    num_hashes: int | None = None
    optimize: Optimize | None = None
    shards: int | None = None
    window: timedelta | float | None = None
    slices: int | None = None
    growth: int | None = None
    up_to: int | None = None

    def _wanted(self, native: bool) -> Wanted:
        grows = choice("on_full", self.on_full, OnFull) == "grow"
        strategy = make_strategy(self.strategy).name
        if grows and not native:
            check_support(GROWTH, strategy)
        return Wanted.check(
            self.capacity,
            self.error_rate,
            seeds=self.seeds,
            key=self.key,
            num_hashes=self.num_hashes,
            optimize=self.optimize,
            shards=self.shards,
            native=native,
            window=self.window,
            slices=self.slices,
            grows=grows,
            growth=self.growth,
            up_to=self.up_to,
        )


def choice(parameter: str, value: object, allowed: object) -> str:
    """Return `value` if it is one of a Literal's, or raise ConfigurationError.

    >>> choice("on_lost", "recreate", OnLost)
    'recreate'
    """
    choices = get_args(allowed)
    if isinstance(value, str) and value in choices:
        return value
    raise ConfigurationError(
        f"{parameter} must be {' or '.join(map(repr, choices))}, not {value!r}"
    )


def refuses(on_full: object) -> bool:
    """Return whether a full filter in the process refuses new items; that one does not grow.

    >>> refuses("warn"), refuses("raise")
    (False, True)
    """
    if on_full == "grow":
        raise ConfigurationError(
            "on_full must be 'warn' or 'raise', not 'grow': a filter in the process does not grow"
        )
    return choice("on_full", on_full, OnFullHere) == "raise"
