"""When a server that failed is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# At most a tenth of the reactor's time is spent on a server that does not answer.
_PAUSE_PER_COST = 10.0
_SHORTEST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class CircuitBreaker:
    """Decides when a server that failed is tried again, so an outage does not cost every link.

    After a failure nothing is tried for ten times as long as the failure took: half a second
    where the connection was refused at once, ten seconds where a time-out of a second ran out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
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
        """Note a try that failed after `cost` seconds; True if it is the first of an outage."""
        now = self._clock()
        first = self._since is None
        if self._since is None:
            self._since = now - cost
        self._resume = now + min(max(_PAUSE_PER_COST * cost, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return first

    def answered(self) -> float | None:
        """Note an answer; return the seconds of the outage that ends here, None if none."""
        if self._since is None:
            return None
        lasted = self._clock() - self._since
        self._since = None
        return lasted
