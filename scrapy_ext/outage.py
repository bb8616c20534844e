"""What a crawl goes by while the filter cannot be reached. Pure: the clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

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


class LocalMemory:
    """Fingerprints this process let through without an answer, the oldest forgotten first.

    Without it, links that point at each other would go round for the whole outage. Those that
    the server can take later are handed over when it is back.
    """

    def __init__(self, limit: int = 200_000) -> None:
        """Make an empty memory.

        Args:
            limit: Most fingerprints kept (about 150 bytes each).
        """
        self._limit = limit
        self._kept: OrderedDict[bytes | str, None] = OrderedDict()
        self._owed: OrderedDict[bytes | str, None] = OrderedDict()

    def __contains__(self, key: bytes | str) -> bool:
        """Return whether the fingerprint was let through."""
        return key in self._owed or key in self._kept

    def add(self, key: bytes | str, *, owed: bool) -> None:
        """Remember a fingerprint.

        Args:
            key: The fingerprint.
            owed: Whether the filter shall get it later.
        """
        chosen = self._owed if owed else self._kept
        chosen[key] = None
        if len(chosen) > self._limit:
            chosen.popitem(last=False)

    def owed(self, most: int) -> list[bytes | str]:
        """Return the oldest fingerprints the filter has not got yet, at most so many."""
        return [key for key, _ in zip(self._owed, range(most), strict=False)]

    def settle(self, keys: list[bytes | str]) -> None:
        """Forget fingerprints that the filter has got now."""
        for key in keys:
            self._owed.pop(key, None)
