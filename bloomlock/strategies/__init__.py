"""The strategies by name: how one update of a filter reaches Redis."""

from __future__ import annotations

from bloomlock.errors import ConfigurationError

from .atomic import AtomicStrategy
from .base import Segment, Shard, SingleTrip, Strategy
from .lock import LockStrategy
from .lua import LuaStrategy
from .pipeline import PipelineStrategy
from .transaction import TransactionStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        AtomicStrategy,
        LuaStrategy,
        TransactionStrategy,
        PipelineStrategy,
        LockStrategy,
    )
}


def make_strategy(strategy: object) -> Strategy:
    """Return a strategy from its name, or the one that was given.

    Raises:
        ConfigurationError: For an unknown name.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, str) and strategy in STRATEGIES:
        return STRATEGIES[strategy]()
    known = ", ".join(map(repr, STRATEGIES))
    raise ConfigurationError(f"strategy must be one of {known}, not {strategy!r}")


__all__ = ["STRATEGIES", "Segment", "Shard", "SingleTrip", "Strategy", "make_strategy"]
