"""A distributed Bloom filter on plain Redis bitmaps: has anyone seen this before?"""

from .errors import (
    BloomlockError,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
    LockError,
    LockTimeoutError,
    OutcomeUnknownError,
    PartialResultError,
    ServerError,
)
from .filters.async_bloom import AsyncBloomFilter
from .filters.bloom import BloomFilter
from .filters.catalog import delete_filter, list_filters
from .filters.inspection import FilterInfo

__version__ = "0.1.0"

__all__ = [
    "AsyncBloomFilter",
    "BloomFilter",
    "BloomlockError",
    "CapacityError",
    "ConfigurationError",
    "FilterInfo",
    "FilterLostError",
    "FilterMismatchError",
    "FilterNotFoundError",
    "LockError",
    "LockTimeoutError",
    "OutcomeUnknownError",
    "PartialResultError",
    "ServerError",
    "delete_filter",
    "list_filters",
]
