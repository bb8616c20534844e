"""Filters and locks by name, without attaching to one. What begins with `async_` is awaited."""

from .filters._async.catalog import async_delete_filter, async_list_filters, async_rename_filter
from .filters._sync.catalog import delete_filter, list_filters, rename_filter
from .locks.catalog import LockInfo, list_locks

__all__ = [
    "LockInfo",
    "async_delete_filter",
    "async_list_filters",
    "async_rename_filter",
    "delete_filter",
    "list_filters",
    "list_locks",
    "rename_filter",
]
