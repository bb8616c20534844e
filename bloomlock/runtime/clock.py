"""The clock that leases are counted by: it goes on while the machine is suspended."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# macOS: its monotonic clock stops in suspend, and Python has no other one there.
boot_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since the machine started, suspended or not."""
