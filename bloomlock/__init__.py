"""A distributed Bloom filter on plain Redis bitmaps: has anyone seen this before?"""

from .errors import (
    BloomlockError,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    OutcomeUnknownError,
    PartialResultError,
    QuorumError,
    ServerError,
)
from .filters.async_bloom import AsyncBloomFilter
from .filters.async_catalog import async_delete_filter, async_list_filters
from .filters.bloom import BloomFilter
from .filters.catalog import delete_filter, list_filters
from .filters.inspection import FilterInfo
from .filters.memory import MemoryBloomFilter
from .locks.async_lock import (
    AsyncFairLock,
    AsyncLock,
    AsyncReadWriteLock,
    AsyncReentrantLock,
)
from .locks.async_redlock import AsyncRedlock
from .locks.events import LockEvent
from .locks.lock import FairLock, Lock, ReadWriteLock, ReentrantLock
from .locks.redlock import Redlock
from .strategies.lock import LockStrategy

__version__ = "0.1.0"

__all__ = [
    "AsyncBloomFilter",
    "AsyncFairLock",
    "AsyncLock",
    "AsyncReadWriteLock",
    "AsyncRedlock",
    "AsyncReentrantLock",
    "BloomFilter",
    "BloomlockError",
    "CapacityError",
    "ConfigurationError",
    "FairLock",
    "FilterInfo",
    "FilterLostError",
    "FilterMismatchError",
    "FilterNotFoundError",
    "Lock",
    "LockError",
    "LockEvent",
    "LockLostError",
    "LockNotOwnedError",
    "LockStrategy",
    "LockTimeoutError",
    "MemoryBloomFilter",
    "OutcomeUnknownError",
    "PartialResultError",
    "QuorumError",
    "ReadWriteLock",
    "Redlock",
    "ReentrantLock",
    "ServerError",
    "async_delete_filter",
    "async_list_filters",
    "delete_filter",
    "list_filters",
]
