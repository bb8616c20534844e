"""Clocks of claims in the hand of a test: leases end when it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hand_clock import HandClock

if TYPE_CHECKING:
    import pytest
    import redis
    from moved_clock import Stopped

BEGIN = 2_000_000_000
"""The first second of a server's clock."""


class Clock(HandClock):
    """The clock of a server, which stands still, and that of the clients in this process.

    Attributes:
        url: Of the server.
        client: Of the server.
        now: Seconds by the server's clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
        super().__init__(monkeypatch)
        self.client, self._stop_at, self.url = stopped
        self.now = BEGIN
        self._stop_at(self.now)

    def go_on(self, seconds: int) -> None:
        """Let time pass for the server and for the clients.

        The server's first: what the clients then renew is renewed from the new time on.
        """
        self.now += seconds
        self._stop_at(self.now)
        self.advance(seconds)


def script_calls(client: redis.Redis) -> int:
    """Return how often a server was asked to run a script; who waits for a claim asks again."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def let_expire(client: redis.Redis) -> None:
    """Let all leases be over, as if their time had passed."""
    for key in client.scan_iter(match="*:claims"):
        for item in client.zrange(key, 0, -1):
            client.zadd(key, {item: 1})
