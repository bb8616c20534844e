"""What is begun in asyncio and must not stop half-way."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
logger = logging.getLogger("bloomlock.runtime")


GRACE_SECONDS = 1.0
"""How long a caller that is cancelled waits at most for what must not stop half-way."""

_GO_ON: set[asyncio.Task[Any]] = set()


async def finish(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Await something to its end, however often the caller is cancelled meanwhile.

    With `seconds` the work goes on alone when the caller waited that long after it was cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    until = float("inf")
    while not task.done():
        left = until - loop.time()
        if left <= 0 and cancelled is not None:
            _GO_ON.add(task)
            task.add_done_callback(_forget)
            raise cancelled
        try:
            await asyncio.wait((task,), timeout=left if left < float("inf") else None)
        except asyncio.CancelledError as error:
            if cancelled is None and seconds is not None:
                until = loop.time() + seconds
            cancelled = error
    if task.cancelled():
        raise asyncio.CancelledError
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    _GO_ON.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("what went on after its caller was cancelled failed: %s", error)
