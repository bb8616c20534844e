"""The clocks of a server and of its clients, held in the hand of a test.

They stand still between the steps of a test, so it can look at the last moment of an epoch, however
busy the machine is.
"""

from __future__ import annotations

from flat_options import given
from near_cache_tools import MANY

from bloomlock import BloomFilter

SLICES, SLICE = 6, 1000
WINDOW = SLICES * SLICE
BEGIN = 2_000_000_000
"""The first moment of an epoch of the server's clock."""
LAST = SLICES * SLICE
"""When the last epoch begins in which what is added at first is remembered, and when it ends."""
OVER = LAST + SLICE
LONG = 10_000.0


class Clocks:
    """The clocks of a server and of the objects that use it.

    Attributes:
        client: A client of that server.
        now: Seconds since `BEGIN`, by the server's clock.
    """

    def __init__(self, client, stop_at, url):
        self.client, self.url = client, url
        self.now = 0
        self._stop_at = stop_at
        self.set(0)

    def set(self, seconds):
        """Set the server's clock; those of the objects show what they showed before."""
        self._stop_at(BEGIN + seconds)
        self.now = seconds

    def go_on(self, seconds, *clocks):
        """Let time go by until that time, for the server and for objects."""
        for clock in clocks:
            clock.now += (seconds - self.now) * clock.rate
        self.set(seconds)

    def make(self, face=BloomFilter, *, client=None, clock=None, **options):
        """Return an object, or what makes one; with a clock one that keeps answers."""
        kept = {} if clock is None else {"near_cache": MANY, "max_staleness": LONG}
        made = face(
            "x",
            error_rate=1e-9,
            client=client or self.client,
            **given({"capacity": 1000, "window": WINDOW, "slices": SLICES} | kept | options),
        )
        if face is not BloomFilter:
            return made
        if clock is not None:
            return clock.of(made)
        return made


class Clock:
    """The clock of an object.

    Args:
        rate: Its seconds in one of the server's.
    """

    def __init__(self, rate=1.0):
        self.now = 5000.0
        self.rate = rate

    def __call__(self):
        return self.now

    def of(self, made):
        """Let an object have this clock; return it."""
        made._state.near_clock = self
        made._state.forget()
        return made
