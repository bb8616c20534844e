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
        for clock in clocks:
            clock.now += seconds - self.now
        self.set(seconds)

    def make(self, *, clock=None, **options):
        """Return an object; with a clock one that keeps answers."""
        kept = {} if clock is None else {"near_cache": MANY, "max_staleness": LONG}
        shape = {"capacity": 1000, "window": WINDOW, "slices": SLICES} | kept | options
        made = BloomFilter("x", error_rate=1e-9, client=self.client, **given(shape))
        return made if clock is None else clock.of(made)
