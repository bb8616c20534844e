"""The options of filters: declared once, and checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from bloomlock.errors import ConfigurationError
from bloomlock.hash_keys import check_key
from bloomlock.keys import DEFAULT_PREFIX
from bloomlock.sizing import check_flag
from bloomlock.slices import Growth, Window
from bloomlock.spec import RequestedSpec, refuse_key
from bloomlock.strategies import ScriptStrategy, make_strategy

from .near_cache import NearCache
from .support import GROWTH, WINDOW, check_support

if TYPE_CHECKING:
    from bloomlock.descriptor import Descriptor
    from bloomlock.hash_keys import HashKey
    from bloomlock.strategies import Strategy

OnFull = Literal["warn", "raise", "grow"]
OnFullHere = Literal["warn", "raise"]
"""Of a filter in the process, which does not grow."""
OnLost = Literal["raise", "recreate"]
OnUnknown = Literal["raise", "new"]


@dataclass(kw_only=True)
class FilterOptions:
    """The options of a filter, checked when they are made; see BloomFilter for what they mean.

    Attributes:
        shape: Capacity, error rate, seeds, num_hashes, optimize, shards and window of a filter that
            is created or attached to; None: one that is opened as it is.
        updates: The strategy itself.
        wanted: The shape, checked.
    """

    strategy: str | Strategy = "atomic"
    key: str | bytes | Literal[True] | None = field(default=None, repr=False)
    near_cache: int | NearCache = 0
    on_full: OnFull | Growth = "warn"
    on_lost: OnLost = "raise"
    on_unknown: OnUnknown = "raise"
    prefix: str = DEFAULT_PREFIX
    refresh: bool = False
    shape: dict[str, Any] | None = None
    updates: Strategy = field(init=False)
    hash_key: HashKey | None = field(init=False)
    caching: NearCache | None = field(init=False)
    wanted: RequestedSpec | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.updates = make_strategy(self.strategy)
        native, growth = self.updates.name == "native", None
        if self.shape is not None and isinstance(self.on_full, Growth):
            growth = self.on_full
        elif choice("on_full", self.on_full, OnFull) == "grow":
            growth = Growth()
        if self.shape is not None:
            if isinstance(window := self.shape.get("window"), Window):
                self.refresh = window.refresh
            self.wanted = RequestedSpec.check(
                **self.shape, key=self.key, native=native, growth=growth
            )
            self.wanted.describe()
        self.hash_key = self.wanted.key if self.wanted else check_key(self.key)
        if native:
            refuse_key(self.hash_key)
        choice("on_lost", self.on_lost, OnLost)
        choice("on_unknown", self.on_unknown, OnUnknown)
        near = self.near_cache
        near = near if isinstance(near, NearCache) else NearCache(near)
        near.check()
        self.caching = near if near.size else None
        self.refresh = check_flag("refresh", self.refresh)
        if self.wanted is not None:
            self.strategy_for(self.wanted)

    def strategy_for(self, spec: RequestedSpec | Descriptor) -> Strategy:
        if self.refresh and not spec.window:
            raise ConfigurationError("refresh must be False for a filter without a window")
        if not (spec.window or spec.growth):
            return self.updates
        check_support(WINDOW if spec.window else GROWTH, self.updates.name)
        if spec.window and self.on_full == "raise":
            raise ConfigurationError("on_full must be 'warn' with window=, not 'raise'")
        return ScriptStrategy(self.updates.name, has_slices=True, refresh=self.refresh)


def choice(parameter: str, value: object, allowed: object) -> str:
    choices = get_args(allowed)
    if isinstance(value, str) and value in choices:
        return value
    raise ConfigurationError(
        f"{parameter} must be {' or '.join(map(repr, choices))}, not {value!r:.80}"
    )
