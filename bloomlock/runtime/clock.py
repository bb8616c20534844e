"""Pauses, and the clock that leases are counted by: it goes on while the machine is suspended."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _find_clock() -> Callable[[], float]:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    # macOS: its monotonic clock stops in suspend, and Python has no other one there.
    return time.monotonic


boot_clock = _find_clock()
"""Seconds since the machine started, suspended or not."""

async_sleep, sleep = asyncio.sleep, time.sleep
