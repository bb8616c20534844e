"""Clocks of claims in the hand of a test: leases end when it says so."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bloomlock.runtime.clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    import redis

BEGIN = 2_000_000_000
"""The first second of a server's clock."""


class Clock:
    """The clock of a server, which stands still, and that of the clients in this process.

    Attributes:
        url: Of the server.
        client: Of the server.
        now: Seconds by the server's clock.
        ahead: Seconds by which the clients' clock is ahead of the true one.
    """

    def __init__(self, client: redis.Redis, stop_at: Callable[[int], None], url: str) -> None:
        self.client, self.url = client, url
        self.now, self.ahead = BEGIN, 0.0
        self._stop_at = stop_at
        stop_at(self.now)

    def go_on(self, seconds: int) -> None:
        """Let time pass for the server and for the clients.

        The server's first: what the clients then renew is renewed from the new time on.
        """
        self.now += seconds
        self._stop_at(self.now)
        self.ahead += seconds

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all of bloomlock go by this clock."""

        def ahead() -> float:
            return boot_clock() + self.ahead

        for name, module in list(sys.modules.items()):
            if name.startswith("bloomlock") and vars(module).get("boot_clock") is boot_clock:
                monkeypatch.setattr(module, "boot_clock", ahead)


def script_calls(client: redis.Redis) -> int:
    """Return how often a server was asked to run a script; who waits for a claim asks again."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def let_expire(client: redis.Redis) -> None:
    """Let all leases be over, as if their time had passed."""
    for key in client.scan_iter(match="*:claims"):
        for item in client.zrange(key, 0, -1):
            client.zadd(key, {item: 1})
