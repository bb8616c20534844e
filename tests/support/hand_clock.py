"""The clock that leases are counted by, in the test's hand: it goes on, and jumps when told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bloomlock.clock import boot_clock
from bloomlock.locks import watchdog

if TYPE_CHECKING:
    import pytest

OFTEN = 0.01
"""Seconds between two looks of a watchdog, which then soon sees that the clock has jumped."""


class HandClock:
    """Stands in place of the library's clock in all its modules.

    Args:
        monkeypatch: Puts the clock of the machine back.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        for name, module in list(sys.modules.items()):
            if name.startswith("bloomlock.") and hasattr(module, "boot_clock"):
                monkeypatch.setattr(module, "boot_clock", self)
        monkeypatch.setattr(watchdog, "LONGEST_SLEEP", OFTEN)
        self.advance(0.0)

    def __call__(self) -> float:
        return boot_clock() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let so much time pass, for the library and not for the server."""
        self._ahead += seconds
        # A watchdog that sleeps already looks at once.
        watchdog.WATCHDOG._jobs.put(None)
