"""How many requests of one client may be on their way at once in asyncio.

Three hundred tasks that ask at the same moment would else open three hundred connections, or find
that the pool has no more. A task that waits for a lock has none; only who asks and who answers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from . import redispy

MOST_AT_ONCE = 16


class Slots:
    """Bounds for each server that a client talks to."""

    def __init__(self) -> None:
        """Start without a loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: dict[str, asyncio.Semaphore] = {}

    def of(self, source: Any) -> asyncio.Semaphore:
        """Return the bound for a pool or a node of a cluster, on the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, {}
        # A node that does not answer must not hold up what goes to the others.
        name = str(getattr(source, "name", ""))
        slots = self._slots.get(name)
        if slots is None:
            most = min(MOST_AT_ONCE, redispy.max_connections(source, MOST_AT_ONCE))
            slots = self._slots[name] = asyncio.Semaphore(max(1, most))
        return slots
