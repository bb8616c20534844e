"""The strategies by name: how an update of a filter, or one batch of it, reaches Redis."""

from __future__ import annotations

from bloomlock.errors import ConfigurationError

from .base import Segment, Shard, Strategy
from .bitmap import BitmapStrategy
from .bits import AtomicStrategy, PipelineStrategy, TransactionStrategy
from .lock import LockStrategy
from .native import NativeStrategy
from .script import ScriptStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        AtomicStrategy,
        ScriptStrategy,
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


__all__ = [
    "STRATEGIES",
    "AtomicStrategy",
    "BitmapStrategy",
    "ScriptStrategy",
    "Segment",
    "Shard",
    "Strategy",
    "make_strategy",
]
