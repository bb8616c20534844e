"""The strategies by name: how an update of a filter, or one batch of it, reaches Redis."""

from __future__ import annotations

from bloomlock.errors import ConfigurationError

from .atomic import AtomicStrategy
from .base import Segment, Shard, Strategy
from .bitmap import BitmapStrategy
from .lock import LockStrategy
from .lua import LuaStrategy
from .native import NativeStrategy
from .setbit import PipelineStrategy, TransactionStrategy
from .sliced import SlicedStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        AtomicStrategy,
        LuaStrategy,
        TransactionStrategy,
        PipelineStrategy,
        LockStrategy,
        NativeStrategy,
    )
}


def make_strategy(strategy: object) -> Strategy:
    """Return a strategy from its name, or the one that was given."""
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, str) and strategy in STRATEGIES:
        return STRATEGIES[strategy]()
    known = ", ".join(map(repr, STRATEGIES))
    raise ConfigurationError(f"strategy must be one of {known}, not {strategy!r}")


class BatchStrategies:
    """The strategies that a batch may take in place of the filter's own.

    The filter's own takes over what the server refuses. `bitmap` has the bits of all items as one
    bitmap; `merge` is the same without answers. `script` looks for tombstones
    too, and `tombstones` for these alone: the bits of the items are all set.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.bitmap = BitmapStrategy(strategy)
        self.merge = BitmapStrategy(strategy, answers=False)
        self.script = strategy
        if not isinstance(strategy, SlicedStrategy):
            self.script = SlicedStrategy(strategy.name)
        self.tombstones = SlicedStrategy(strategy.name, all_set=True)


__all__ = [
    "STRATEGIES",
    "AtomicStrategy",
    "BatchStrategies",
    "Segment",
    "Shard",
    "SlicedStrategy",
    "Strategy",
    "make_strategy",
]
