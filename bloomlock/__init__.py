"""A distributed Bloom filter on plain Redis bitmaps: has anyone seen this before?"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import catalog as catalog
    from . import errors as errors
    from .compiled import __speed__ as __speed__
    from .filters._async.bloom import AsyncBloomFilter
    from .filters._async.claims import AsyncClaim
    from .filters._sync.bloom import BloomFilter
    from .filters._sync.claims import Claim
    from .filters.claim_lists import ClaimCounts, FailedItem, OpenClaim
    from .filters.claims import ClaimState
    from .filters.inspection import FilterInfo
    from .filters.memory import MemoryBloomFilter
    from .filters.near_cache import NearCache
    from .locks._async.lock import (
        AsyncFairLock,
        AsyncLock,
        AsyncReadWriteLock,
        AsyncReentrantLock,
    )
    from .locks._async.redlock import AsyncRedlock
    from .locks._sync.lock import FairLock, Lock, ReadWriteLock, ReentrantLock
    from .locks._sync.redlock import Redlock
    from .locks.reports import LockEvent
    from .once import once
    from .planning import Plan, plan
    from .slices import Growth, Window
    from .strategies.lock import LockStrategy

__version__ = "0.1.0"

__all__ = [
    "AsyncBloomFilter",
    "AsyncClaim",
    "AsyncFairLock",
    "AsyncLock",
    "AsyncReadWriteLock",
    "AsyncRedlock",
    "AsyncReentrantLock",
    "BloomFilter",
    "Claim",
    "ClaimCounts",
    "ClaimState",
    "FailedItem",
    "FairLock",
    "FilterInfo",
    "Growth",
    "Lock",
    "LockEvent",
    "LockStrategy",
    "MemoryBloomFilter",
    "NearCache",
    "OpenClaim",
    "Plan",
    "ReadWriteLock",
    "Redlock",
    "ReentrantLock",
    "Window",
    "once",
    "plan",
]

# Imported at their first use (PEP 562): redis-py takes most of the time, filters more than locks.
_MODULES = {
    "AsyncBloomFilter": ".filters._async.bloom",
    "AsyncClaim": ".filters._async.claims",
    "AsyncFairLock": ".locks._async.lock",
    "AsyncLock": ".locks._async.lock",
    "AsyncReadWriteLock": ".locks._async.lock",
    "AsyncRedlock": ".locks._async.redlock",
    "AsyncReentrantLock": ".locks._async.lock",
    "BloomFilter": ".filters._sync.bloom",
    "Claim": ".filters._sync.claims",
    "ClaimCounts": ".filters.claim_lists",
    "ClaimState": ".filters.claims",
    "FailedItem": ".filters.claim_lists",
    "FairLock": ".locks._sync.lock",
    "FilterInfo": ".filters.inspection",
    "Growth": ".slices",
    "Lock": ".locks._sync.lock",
    "LockEvent": ".locks.reports",
    "LockStrategy": ".strategies.lock",
    "MemoryBloomFilter": ".filters.memory",
    "NearCache": ".filters.near_cache",
    "OpenClaim": ".filters.claim_lists",
    "Plan": ".planning",
    "ReadWriteLock": ".locks._sync.lock",
    "Redlock": ".locks._sync.redlock",
    "ReentrantLock": ".locks._sync.lock",
    "Window": ".slices",
    "__speed__": ".compiled",
    "once": ".once",
    "plan": ".planning",
}


if not TYPE_CHECKING:  # A checker that saw __getattr__ would take any name for a public one.

    def __getattr__(name: str) -> object:
        """Import a public name, or a module of public names."""
        if name in {"catalog", "errors"}:
            return import_module(f".{name}", __name__)
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES[name], __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the names that tools complete."""
    return sorted({*globals(), *__all__})
