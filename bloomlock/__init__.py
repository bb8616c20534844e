"""A distributed Bloom filter on plain Redis bitmaps: has anyone seen this before?"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiled import __speed__ as __speed__
    from .errors import (
        BatchError,
        BloomlockError,
        CapacityError,
        ClaimError,
        ClaimLostError,
        ConfigurationError,
        Duplicate,
        FailedTooOften,
        FilterLostError,
        FilterMismatchError,
        FilterNotFoundError,
        FingerprintMismatchError,
        InProgress,
        LockError,
        LockLostError,
        LockNotOwnedError,
        LockTimeoutError,
        OnceError,
        OutcomeUnknownError,
        PartialResultError,
        QuorumError,
        ServerError,
    )
    from .filters._async.bloom import AsyncBloomFilter
    from .filters._async.catalog import (
        async_delete_filter,
        async_list_filters,
        async_rename_filter,
    )
    from .filters._async.claims import AsyncClaim
    from .filters._sync.bloom import BloomFilter
    from .filters._sync.catalog import delete_filter, list_filters, rename_filter
    from .filters._sync.claims import Claim
    from .filters.claim_lists import FailedItem, OpenClaim
    from .filters.claim_session import ClaimState
    from .filters.claims import ClaimCounts
    from .filters.files import FileInfo, verify_file
    from .filters.inspection import FilterInfo
    from .filters.memory import MemoryBloomFilter
    from .filters.options import NearCache, Window
    from .growth import Growth
    from .idempotency.consumers import ACK, RETRY, Action, Consumed, async_consume, consume
    from .idempotency.once import once
    from .locks._async.lock import (
        AsyncFairLock,
        AsyncLock,
        AsyncReadWriteLock,
        AsyncReentrantLock,
    )
    from .locks._async.redlock import AsyncRedlock
    from .locks._sync.lock import FairLock, Lock, ReadWriteLock, ReentrantLock
    from .locks._sync.redlock import Redlock
    from .locks.events import LockEvent
    from .planning import Plan, plan
    from .strategies.lock import LockStrategy

__version__ = "0.1.0"

__all__ = [
    "ACK",
    "RETRY",
    "Action",
    "AsyncBloomFilter",
    "AsyncClaim",
    "AsyncFairLock",
    "AsyncLock",
    "AsyncReadWriteLock",
    "AsyncRedlock",
    "AsyncReentrantLock",
    "BatchError",
    "BloomFilter",
    "BloomlockError",
    "CapacityError",
    "Claim",
    "ClaimCounts",
    "ClaimError",
    "ClaimLostError",
    "ClaimState",
    "ConfigurationError",
    "Consumed",
    "Duplicate",
    "FailedItem",
    "FailedTooOften",
    "FairLock",
    "FileInfo",
    "FilterInfo",
    "FilterLostError",
    "FilterMismatchError",
    "FilterNotFoundError",
    "FingerprintMismatchError",
    "Growth",
    "InProgress",
    "Lock",
    "LockError",
    "LockEvent",
    "LockLostError",
    "LockNotOwnedError",
    "LockStrategy",
    "LockTimeoutError",
    "MemoryBloomFilter",
    "NearCache",
    "OnceError",
    "OpenClaim",
    "OutcomeUnknownError",
    "PartialResultError",
    "Plan",
    "QuorumError",
    "ReadWriteLock",
    "Redlock",
    "ReentrantLock",
    "ServerError",
    "Window",
    "async_consume",
    "async_delete_filter",
    "async_list_filters",
    "async_rename_filter",
    "consume",
    "delete_filter",
    "list_filters",
    "once",
    "plan",
    "rename_filter",
    "verify_file",
]

# Imported at their first use (PEP 562): redis-py takes most of the time, filters more than locks.
_MODULES = {
    "ACK": ".idempotency.consumers",
    "RETRY": ".idempotency.consumers",
    "Action": ".idempotency.consumers",
    "AsyncBloomFilter": ".filters._async.bloom",
    "AsyncClaim": ".filters._async.claims",
    "AsyncFairLock": ".locks._async.lock",
    "AsyncLock": ".locks._async.lock",
    "AsyncReadWriteLock": ".locks._async.lock",
    "AsyncRedlock": ".locks._async.redlock",
    "AsyncReentrantLock": ".locks._async.lock",
    "BatchError": ".errors",
    "BloomFilter": ".filters._sync.bloom",
    "BloomlockError": ".errors",
    "CapacityError": ".errors",
    "Claim": ".filters._sync.claims",
    "ClaimCounts": ".filters.claims",
    "ClaimError": ".errors",
    "ClaimLostError": ".errors",
    "ClaimState": ".filters.claim_session",
    "ConfigurationError": ".errors",
    "Consumed": ".idempotency.consumers",
    "Duplicate": ".errors",
    "FailedItem": ".filters.claim_lists",
    "FailedTooOften": ".errors",
    "FairLock": ".locks._sync.lock",
    "FileInfo": ".filters.files",
    "FilterInfo": ".filters.inspection",
    "FilterLostError": ".errors",
    "FilterMismatchError": ".errors",
    "FilterNotFoundError": ".errors",
    "FingerprintMismatchError": ".errors",
    "Growth": ".growth",
    "InProgress": ".errors",
    "Lock": ".locks._sync.lock",
    "LockError": ".errors",
    "LockEvent": ".locks.events",
    "LockLostError": ".errors",
    "LockNotOwnedError": ".errors",
    "LockStrategy": ".strategies.lock",
    "LockTimeoutError": ".errors",
    "MemoryBloomFilter": ".filters.memory",
    "NearCache": ".filters.options",
    "OnceError": ".errors",
    "OpenClaim": ".filters.claim_lists",
    "OutcomeUnknownError": ".errors",
    "PartialResultError": ".errors",
    "Plan": ".planning",
    "QuorumError": ".errors",
    "ReadWriteLock": ".locks._sync.lock",
    "Redlock": ".locks._sync.redlock",
    "ReentrantLock": ".locks._sync.lock",
    "ServerError": ".errors",
    "Window": ".filters.options",
    "__speed__": ".compiled",
    "async_consume": ".idempotency.consumers",
    "async_delete_filter": ".filters._async.catalog",
    "async_list_filters": ".filters._async.catalog",
    "async_rename_filter": ".filters._async.catalog",
    "consume": ".idempotency.consumers",
    "delete_filter": ".filters._sync.catalog",
    "list_filters": ".filters._sync.catalog",
    "rename_filter": ".filters._sync.catalog",
    "once": ".idempotency.once",
    "plan": ".planning",
    "verify_file": ".filters.files",
}


if not TYPE_CHECKING:  # A checker that saw __getattr__ would take any name for a public one.

    def __getattr__(name: str) -> object:
        """Import a public name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES[name], __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the names that tools complete."""
    return sorted({*globals(), *__all__})
