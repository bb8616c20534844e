"""Positive answers kept in the process: most repeats need no round trip.

Why a kept answer is true. Within one generation bits are set and never unset, and every answer of
the server brings the header that names the generation. So once an item was answered "seen", or was
added, in a generation, every later answer about it in that generation is "seen" too: keeping it
keeps the truth. Only a negative answer can become wrong, and none is kept.

What can end is the generation. Three things bound for how long that goes unnoticed:

    by construction  What is kept belongs to one `NearCache`, and that to one header. An operation
                     takes the cache of its view before it asks and keeps its answers there and
                     nowhere else. A view that is replaced gets another cache, so a late answer
                     about an old generation lands where nobody reads any more.
    by time          A cache answers only until max_staleness after the moment at which a request
                     was sent whose reply brought its header. Then the next item goes to the
                     server, kept or not, and finds the header, or the clear. A clear that has
                     returned came after that moment, so no answer from before it is given later
                     than max_staleness after it.
    by news          Where the server tells of changes to the descriptor, which everybody writes
                     who clears, replaces or deletes (runtime/tracking.py), a cache ends some
                     milliseconds after them. Nothing depends on that: when news fail to come,
                     time bounds as before.

There is no lock. Sets and dicts are safe for threads one operation at a time, with and without
a GIL, and everything else is one assignment, any order of which leaves one of the states above:
at worst an item is forgotten, or a deadline is nearer than it had to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.errors import ConfigurationError
from bloomlock.runtime.tracking import News

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bloomlock.runtime.async_tracking import AsyncTracking
    from bloomlock.runtime.tracking import Tracking, Unreachable

    AnyTracking = Tracking | AsyncTracking | Unreachable

MAX_STALENESS_SECONDS = 1.0
"""Default of max_staleness."""

LOOK_SECONDS = 0.005
"""How often is looked for news, while answers are given: a system call every so many answers."""


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

    def start(self, header: int, news: AnyTracking | None = None) -> NearCache:
        """Return an empty cache for the generation of a header."""
        return NearCache(header, self, news)


class NearCache:
    """The positive answers of one generation.

    Attributes:
        header: The generation's.
    """

    __slots__ = (
        "_answers_until",
        "_caching",
        "_confirmed_until",
        "_news",
        "_now",
        "_old",
        "_young",
        "header",
    )

    def __init__(self, header: int, caching: NearCaching, news: AnyTracking | None) -> None:
        """Start with nothing, and unconfirmed."""
        self.header = header
        self._caching = caching
        self._now = caching.clock
        self._news = news
        self._confirmed_until = -math.inf
        # The same, or the time of the next look for news if that is earlier.
        self._answers_until = -math.inf
        self._young = _Half()
        self._old = _Half()

    def knows(self, item: object) -> bool:
        """Tell whether the item is kept and the server was heard of lately enough.

        Any object may be asked for. Only exact `str` and `bytes` are ever kept: what a subclass
        thinks of equality is not asked.
        """
        kept = self._young.get(type(item))
        if kept is None:
            return False
        if item not in kept:
            if item not in self._old[type(item)]:
                return False
            self.keep(item)
        return self._now() < self._answers_until or self._look()

    def known(self, items: Sequence[Any]) -> list[bool]:
        """Tell the same of each item; the clock is read once for all."""
        if not (self._now() < self._answers_until or self._look()):
            return [False] * len(items)
        young, old = self._young, self._old
        found = []
        for kind, run in groupby(items, type):
            mine, others = young.get(kind, ()), old.get(kind, ())
            found += [item in mine or item in others for item in run]
        return found

    def _look(self) -> bool:
        """Look for news; tell whether answers may be given."""
        now = self._now()
        if not now < self._confirmed_until:
            return False
        news, next_look = self._news, math.inf
        if news is not None:
            found, next_look = news.look(), now + LOOK_SECONDS
            if found is News.CHANGED:
                self.end()
                return False
            if found is News.BROKEN:
                self.follow(None)
                return False
        self._answers_until = min(self._confirmed_until, next_look)
        return True

    def confirm(self, sent: float) -> None:
        """Note that the reply to a request sent then, or later, brought this cache's header."""
        self._confirmed_until = sent + self._caching.max_staleness

    def keep(self, item: Any) -> None:
        """Keep an item that is seen in this generation."""
        young = self._young
        kept = young.get(type(item))
        if kept is None:
            return
        kept.add(item)
        if len(young[str]) + len(young[bytes]) >= self._caching.size:
            self._turn(young)

    def keep_many(self, items: Iterable[Any]) -> None:
        """Keep items that are seen in this generation."""
        for kind, run in groupby(items, type):
            if kind in self._young:
                self._keep_run(kind, run)

    def _keep_run(self, kind: type, run: Iterator[Any]) -> None:
        while True:
            young = self._young
            room = self._caching.size - len(young[str]) - len(young[bytes])
            some = list(islice(run, max(1, room)))
            if not some:
                return
            young[kind].update(some)
            if len(young[str]) + len(young[bytes]) >= self._caching.size:
                self._turn(young)

    def _turn(self, full: _Half) -> None:
        # In this order nothing is out of sight in between. Whoever else does the same for the
        # same half, however late, comes to the same successor: nothing is lost.
        self._old = full
        self._young = full.successor()

    def doubt(self) -> None:
        """Answer nothing until the next `confirm`; the items stay."""
        self._confirmed_until = self._answers_until = -math.inf

    def follow(self, news: AnyTracking | None) -> None:
        """Look there for changes of the descriptor from now on; None: nowhere."""
        self._news = news
        self.doubt()

    @property
    def has_news(self) -> bool:
        """Whether there is somewhere to look, as far as is known."""
        return self._news is not None

    def end(self) -> None:
        """Answer nothing any more, whatever is confirmed or kept by operations under way."""
        self._now = _end_of_time

    @property
    def ended(self) -> bool:
        """Whether it was ended."""
        return self._now is _end_of_time

    def count(self) -> int:
        """Return how many different items are kept; `"a"` and `b"a"` are two here."""
        young, old = self._young, self._old
        return sum(len(young[kind] | old[kind]) for kind in (str, bytes))


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


class _Half(dict[type, set[Any]]):
    """The items kept since the half before was full, by their type.

    By type, because `"a"` and `b"a"` have the same hash, and to compare them is an error under
    `python -bb`.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        super().__init__({str: set(), bytes: set()})
        self._next: dict[None, _Half] = {}

    def successor(self) -> _Half:
        """Return the half that follows this one, the same to every caller."""
        return self._next.setdefault(None, _Half())


def _end_of_time() -> float:
    return math.inf
