"""The clock that leases are counted by: it goes on while the machine is suspended."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def boot_clock() -> float:
        """Return seconds since the machine started, suspended or not."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock stops in suspend, and there is no other one
    boot_clock = time.monotonic
