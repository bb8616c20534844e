"""Which route a batch takes, by the time that each is expected to take. Pure: it knows no clock.

What a route takes is its round trips, and its work: bits that are sent and set one by one, or bytes
of bitmap that go there and back. The work is first taken from what was measured where client and
server share a machine with nothing else to do. After that the batches of a filter object teach it:
what a batch took, over what was expected, is kept for its route, smoothed. A route that was not
taken yet is assumed to be as much slower or faster as the other; one that was not taken for long is
assumed to come slowly nearer to it. So a route that was slow once is tried again, and no request is
made to measure anything.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Way = Literal["items", "script", "bitmap"]

NEAR_ROUND_TRIP_S = 0.00005
"""Assumed until a round trip was measured: that of a socket on one machine."""
FAR_ROUND_TRIP_S = 0.005
"""A server that is as far away is assumed to be behind a link of 1 Gbit/s."""
FAR_BYTE_S = 8e-9
BITMAP_S = 0.0004
"""A bitmap's own time, whatever its size: arrays, two requests and a script."""
BITMAP_BYTE_S = 0.5e-9
BITMAP_BIT_S = 0.03e-6
SMOOTHING = 0.3
DRIFT = 0.02
FEWEST_BITS = 1000
"""Batches of fewer bits say little about the time of a bit."""
SLOWEST, QUICKEST = 1000.0, 0.1


class Batch(NamedTuple):
    """What the time of a batch follows from.

    Attributes:
        bits: Bits of all its items, n k.
        image_bytes: Bytes of bitmap that would travel, both directions together.
        shards: Shards that have any of its items.
        bit_s: Seconds of the items for a bit, without a link.
        bit_bytes: Bytes of the items for a bit.
        may_merge: Whether the server is quickly done with each command of the bitmap.
    """

    bits: int
    image_bytes: float
    shards: float
    bit_s: float
    bit_bytes: int
    may_merge: bool


class RouteTimes:
    """What is known of the time that batches of one filter object take; safe for threads.

    Attributes:
        round_trip_s: Seconds of a round trip, smoothed.
        chosen: The route taken last where there was a choice; empty: none yet.
    """

    def __init__(self) -> None:
        """Assume a server on this machine."""
        self.round_trip_s = NEAR_ROUND_TRIP_S
        self.chosen = ""
        self._is_measured = False
        self._slowness: dict[Way, float] = {}
        self._byte_s: float | None = None

    def note_round_trip(self, seconds: float) -> None:
        """Note how long a small request took."""
        old = self.round_trip_s
        # A busy moment makes a trip longer; nothing makes it shorter than it is.
        if not self._is_measured or seconds < old:
            self.round_trip_s = max(seconds, 0.0)
        else:
            self.round_trip_s = old + SMOOTHING * (seconds - old)
        self._is_measured = True
        if self._byte_s and not self._assumed_byte_s():
            # The server is near after all, and what was learned was relative to a slow link.
            self._byte_s, self._slowness = None, {}

    def note_batch(self, way: Way, batch: Batch, seconds: float) -> None:
        """Note how long a batch took that was answered in full."""
        if batch.bits < FEWEST_BITS or way == "script":
            return
        if self._byte_s is None:
            # What is measured is relative to this from now on.
            self._byte_s = self._assumed_byte_s()
        trips, work = self._cost(way, batch)
        now = min(max((seconds - trips) / work, QUICKEST), SLOWEST)
        # As one value, that another thread finds whole.
        slowness = dict(self._slowness)
        old = slowness.get(way, now)
        slowness[way] = old + SMOOTHING * (now - old)
        for other, value in slowness.items():
            if other != way:
                slowness[other] = value + DRIFT * (slowness[way] - value)
        self._slowness = slowness

    def expected_s(self, way: Way, batch: Batch) -> float:
        """Return the seconds that a batch is expected to take."""
        trips, work = self._cost(way, batch)
        slowness = self._slowness
        assumed = next(iter(slowness.values()), 1.0)
        return trips + work * slowness.get(way, assumed)

    def choose(self, batch: Batch) -> Way:
        """Return the route that is expected to take less time."""
        quicker = self.expected_s("bitmap", batch) < self.expected_s("items", batch)
        way: Way = "bitmap" if batch.may_merge and quicker else "items"
        self.chosen = way
        return way

    def _cost(self, way: Way, batch: Batch) -> tuple[float, float]:
        """Return the seconds of the round trips, and of the work where nothing is slower."""
        byte_s = self._assumed_byte_s() if self._byte_s is None else self._byte_s
        if way == "bitmap":
            work = BITMAP_S * batch.shards + BITMAP_BIT_S * batch.bits
            work += (BITMAP_BYTE_S + byte_s) * batch.image_bytes
            return 2 * self.round_trip_s * batch.shards, work
        return self.round_trip_s, batch.bits * (batch.bit_s + byte_s * batch.bit_bytes)

    def _assumed_byte_s(self) -> float:
        return FAR_BYTE_S if self.round_trip_s > FAR_ROUND_TRIP_S else 0.0
