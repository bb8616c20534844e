"""What is begun in asyncio and must not stop half-way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Await something to its end, however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # noqa: S110, BLE001 - it is the task's, and raised below
            pass
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()
