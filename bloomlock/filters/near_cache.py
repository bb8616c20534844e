"""Positive answers kept in the process: most repeats need no round trip.

Why a kept answer is true. Within one generation bits are set and never unset, and every answer of
the server brings the header that names the generation. So once an item was answered "seen", or was
added, in a generation, every later answer about it in that generation is "seen" too: keeping it
keeps the truth. Only a negative answer can become wrong, and none is kept.

What can end is the generation. Two things bound for how long that goes unnoticed:

    by construction  What is kept belongs to one `NearCache`, and that to one header. An operation
                     takes the cache of its view before it asks and keeps its answers there and
                     nowhere else. A view that is replaced gets another cache, so a late answer
                     about an old generation lands where nobody reads any more.
    by time          A cache answers only until max_staleness after the moment at which a request
                     was sent whose reply brought its header. Then the next item goes to the
                     server, kept or not, and finds the header, or the clear. A clear that has
                     returned came after that moment, so no answer from before it is given later
                     than max_staleness after it.

There is no lock. What several threads change at once is a set of items, or is changed by one
assignment, any order of which leaves one of the states above: at worst an item is forgotten, or a
deadline is nearer than it had to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.errors import ConfigurationError

from .last_items import LastItems

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_STALENESS_SECONDS = 1.0
"""Default of max_staleness."""


@dataclass(slots=True)
class NearCaching:
    """How the answers of one filter are kept.

    Attributes:
        size: Positive answers kept for certain, N >= 1; at most 2 N are.
        max_staleness: Seconds without word from the server after which it is asked.
        clock: Seconds, going on while the machine is suspended.
    """

    size: int
    max_staleness: float
    clock: Callable[[], float]

    @classmethod
    def check(
        cls, near_cache: object, max_staleness: object, clock: Callable[[], float]
    ) -> NearCaching | None:
        """Return what the parameters ask for; None if that is no cache.

        Raises:
            ConfigurationError: If one of them is not usable.
        """
        if isinstance(near_cache, bool) or not isinstance(near_cache, int) or near_cache < 0:
            raise ConfigurationError(
                f"near_cache must be a whole number of items, 0 for none, not {near_cache!r:.80}"
            )
        if (
            isinstance(max_staleness, bool)
            or not isinstance(max_staleness, (int, float))
            or not 0 < max_staleness < math.inf
        ):
            raise ConfigurationError(
                f"max_staleness must be a number of seconds above 0, not {max_staleness!r:.80}"
            )
        return cls(near_cache, float(max_staleness), clock) if near_cache else None

    def start(self, header: int) -> NearCache:
        """Return an empty cache for the generation of a header."""
        return NearCache(header, self)


class NearCache(LastItems):
    """The last items seen in one generation.

    Attributes:
        header: The generation's.
    """

    __slots__ = ("_answers_until", "_caching", "_now", "header")

    def __init__(self, header: int, caching: NearCaching) -> None:
        """Start with nothing, and unconfirmed."""
        super().__init__(caching.size)
        self.header = header
        self._caching = caching
        self._now = caching.clock
        self._answers_until = -math.inf

    def knows(self, item: object) -> bool:
        """Tell whether the item is kept and the server was heard of lately enough."""
        kept = self._young.get(type(item))
        return (
            kept is not None
            and (item in kept or self._recall(item))
            and self._now() < self._answers_until
        )

    def known(self, items: Sequence[Any]) -> list[bool]:
        """Tell the same of each item; the clock is read once for all."""
        if self._now() < self._answers_until:
            return self.which(items)
        return [False] * len(items)

    def confirm(self, sent: float) -> None:
        """Note that the reply to a request sent then, or later, brought this cache's header."""
        self._answers_until = sent + self._caching.max_staleness

    def doubt(self) -> None:
        """Answer nothing until the next `confirm`; the items stay."""
        self._answers_until = -math.inf

    def end(self) -> None:
        """Answer nothing any more, whatever is confirmed or kept by operations under way."""
        self._now = _end_of_time

    @property
    def ended(self) -> bool:
        """Whether it was ended."""
        return self._now is _end_of_time


class Asked(NamedTuple):
    """An operation that keeps its answers.

    Attributes:
        near: Where.
        since: The clock's reading before anything was sent.
    """

    near: NearCache
    since: float

    def confirm(self) -> None:
        """Note that a reply brought the header of the cache."""
        self.near.confirm(self.since)


def _end_of_time() -> float:
    return math.inf
