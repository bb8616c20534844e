"""What a crawl goes by while the filter cannot be reached. Pure: the clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from bloomlock import MemoryBloomFilter

if TYPE_CHECKING:
    from bloomlock import BloomFilter

Clock = Callable[[], float]

# At most a tenth of the reactor's time is spent on a server that does not answer.
_PAUSE_PER_COST = 10.0
_SHORTEST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class CircuitBreaker:
    """Decides when a server that failed is tried again, so an outage does not cost every link.

    After a failure nothing is tried for ten times as long as the failure took: half a second
    where the connection was refused at once, ten seconds where a time-out of a second ran out.
    """

    def __init__(self, clock: Clock) -> None:
        """Start with a server that is believed to answer.

        Args:
            clock: A monotonic clock, in seconds.
        """
        self._clock = clock
        self._resume = 0.0
        self._since: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def may_try(self) -> bool:
        """Return whether it is time to ask the server."""
        return self._since is None or self._clock() >= self._resume

    def failed(self, cost: float) -> bool:
        """Note a failed try.

        Args:
            cost: How long the try blocked, in seconds.

        Returns:
            True if this failure is the first of an outage.
        """
        now = self._clock()
        first = self._since is None
        if self._since is None:
            self._since = now - cost
        self._resume = now + min(max(_PAUSE_PER_COST * cost, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return first

    def answered(self) -> float | None:
        """Note that the server answered.

        Returns:
            How long the outage that ends here lasted, in seconds; None if there was none.
        """
        if self._since is None:
            return None
        lasted = self._clock() - self._since
        self._since = None
        return lasted


class Mirror:
    """Fingerprints as the bits they have in the shared filter; none is forgotten.

    A fingerprint costs 2 to 5 microseconds, and all together as many bytes as the shared filter.
    The bits are a part of those of the shared filter, so whatever looks known here by chance looks
    known there too.
    """

    def __init__(self, shared: BloomFilter) -> None:
        """Start knowing nothing.

        Args:
            shared: The filter whose parameters it takes.
        """
        self._bits = MemoryBloomFilter.like(shared)

    def __contains__(self, key: bytes | str) -> bool:
        """Return whether the fingerprint is known."""
        return key in self._bits

    def add(self, key: bytes | str) -> bool:
        """Remember a fingerprint; True if it was not known."""
        return self._bits.add(key)

    def clear(self) -> None:
        """Forget everything."""
        self._bits.clear()

    def everything(self) -> MemoryBloomFilter:
        """Return all that is known, as `BloomFilter.update` takes it."""
        return self._bits


class LastRequests:
    """The last fingerprints, each as it is; the oldest are forgotten first."""

    def __init__(self, limit: int = 200_000) -> None:
        """Start knowing nothing.

        Args:
            limit: Most fingerprints kept (about 150 bytes each).
        """
        self._limit = limit
        self._kept: OrderedDict[bytes | str, None] = OrderedDict()

    def __contains__(self, key: bytes | str) -> bool:
        """Return whether the fingerprint is known."""
        return key in self._kept

    def add(self, key: bytes | str) -> bool:
        """Remember a fingerprint; True if it was not known."""
        if key in self._kept:
            return False
        self._kept[key] = None
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def everything(self) -> list[bytes | str]:
        """Return all that is known, as `BloomFilter.update` takes it."""
        return list(self._kept)
