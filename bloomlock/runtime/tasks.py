"""The runtime for asyncio."""

from ._async.driver import AsyncDriver as Tasks
from ._async.exchange import MOST_AT_ONCE

__all__ = ["MOST_AT_ONCE", "Tasks", "tasks_for", "tasks_over"]

tasks_for, tasks_over = Tasks.of, Tasks.over
