"""Pauses, and the clock that leases are counted by: it goes on while the machine is suspended."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


boot_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    # macOS: its monotonic clock stops in suspend, and Python has no other one there.
    else time.monotonic
)
"""Seconds since the machine started, suspended or not."""

async_sleep, sleep = asyncio.sleep, time.sleep
