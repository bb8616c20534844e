"""Filters by name, without attaching to one. What begins with `async_` is awaited."""

from .filters._async.catalog import async_delete_filter, async_list_filters
from .filters._sync.catalog import delete_filter, list_filters

__all__ = ["async_delete_filter", "async_list_filters", "delete_filter", "list_filters"]
