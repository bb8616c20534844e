"""Filters by name, without attaching to one. What begins with `async_` is awaited."""

from .filters._async.catalog import async_delete_filter, async_list_filters, async_rename_filter
from .filters._sync.catalog import delete_filter, list_filters, rename_filter

__all__ = [
    "async_delete_filter",
    "async_list_filters",
    "async_rename_filter",
    "delete_filter",
    "list_filters",
    "rename_filter",
]
