"""Positive answers kept in the process: most repeats need no round trip.

Why a kept answer is true. Within one generation bits are set and never unset, and every answer of
the server brings the header that names the generation. So once an item was answered "seen", or was
added, in a generation, every later answer about it in that generation is "seen" too: keeping it
keeps the truth. Only a negative answer can become wrong, and none is kept.

What can end is the generation, or what a time window remembers. These bound for how long that goes
unnoticed:

    by construction  What is kept belongs to one `NearCache`, and that to one header. An operation
                     takes the cache of its view before it asks and keeps its answers there and
                     nowhere else. A view that is replaced gets another cache, so a late answer
                     about an old generation goes to a cache that is not read any more.
    by age           Within a generation an item may be discarded by another client. The first time
                     the headers say so, and that is as good as another generation. From then on a
                     cache answers for max_staleness from when it was made, and another takes its
                     place. Whatever it keeps was asked for after it was made, so it gives no answer
                     from before a `discard` for longer than max_staleness after that returned. So
                     it is with a time window from the first, which ends what it remembers.
    by time          A cache answers only until max_staleness after the moment at which a request
                     was sent whose reply brought its header. Then the next item goes to the
                     server, kept or not, and finds the header, or the clear. A clear that has
                     returned came after that moment, so no answer from before it is given later
                     than max_staleness after it.

Looking up takes no lock. What several threads change at once is a set of items, or is changed by
one assignment, any order of which leaves one of the states above: at worst an item is forgotten, or
a deadline is nearer than it had to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.errors import ConfigurationError
from bloomlock.runtime.forks import LockOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Keys = Sequence[Any]

MAX_STALENESS_SECONDS = 1.0
"""Default of max_staleness."""


@dataclass(slots=True)
class NearCaching:
    """How the answers of one filter are kept.

    Attributes:
        size: Positive answers kept for certain, N >= 1; at most 2 N are.
        max_staleness: Seconds without a reply from the server after which it is asked.
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

    def start(self, header: int, *, lasts: bool = True) -> NearCache:
        """Return an empty cache for the generation of a header.

        Args:
            header: What the replies must have brought.
            lasts: Whether what is kept stays true as long as replies bring that header. False: each
                item may be discarded by another client, without any sign.
        """
        return NearCache(header, self, math.inf if lasts else self.clock() + self.max_staleness)


class NearCache(LockOwner):
    """The last N items seen in one generation; safe to use from many threads.

    Items lie in two sets. What is used goes to the young one, and when that holds N it becomes the
    old one, and the old one is dropped. So the last N different items are kept for certain, and 2 N
    at most (one more for each further thread that is putting one in).

    Only exact `str` and `bytes` are kept: how another class defines equality is not relied on. A
    `bytes` stands in a tuple, because comparing it with a `str` is an error under `python -bb`.

    Attributes:
        header: The generation's.
    """

    def __init__(self, header: int, caching: NearCaching, until: float = math.inf) -> None:
        """Start with nothing, and unconfirmed; answer nothing from a time on."""
        super().__init__()
        self.header = header
        self._until = until
        self._caching = caching
        self._size = caching.size
        self._now = caching.clock
        self._answers_until = -math.inf
        self._young: set[Any] = set()
        self._old: set[Any] = set()

    def knows(self, item: Any) -> bool:
        """Return whether the item is kept and the generation was confirmed lately enough."""
        if type(item) is not str:
            if type(item) is not bytes:
                return False
            item = (item,)
        return (
            item in self._young or (item in self._old and self._recall(item))
        ) and self._now() < self._answers_until

    def missed(self, keys: Keys) -> Sequence[int]:
        """Return where the items stand of which that is not so; the clock is read once for all.

        Args:
            keys: What `keys_of` gave for them.
        """
        if not self._now() < self._answers_until:
            return range(len(keys))
        old, missed, start = self._old, [], 0
        # A set only grows until another one takes its place, so of equal items that stand at
        # several places the first that are not found are the first there are.
        for key in filterfalse(self._young.__contains__, keys):
            start = keys.index(key, start)
            if not (key in old and self._recall(key)):
                missed.append(start)
            start += 1
        return missed

    def known(self, items: Sequence[Any]) -> list[bool]:
        """Return for each item whether it is kept, as `missed` does."""
        return flags_of(self.missed(keys_of(items)), len(items))

    def keep(self, item: Any) -> None:
        """Put an item in, if it can be kept."""
        key = _key_of(item)
        if key is not None:
            self._put((key,))

    def keep_many(self, items: Sequence[Any]) -> None:
        """Put items in, as one by one in this order."""
        keys = [key for key in keys_of(items) if key is not None]
        start = 0
        while start < len(keys):
            stop = start + max(1, self._size - len(self._young))
            self._put(keys[start:stop])
            start = stop

    def count(self) -> int:
        """Return how many different items are kept; `"a"` and `b"a"` are two here."""
        return len(self._young | self._old)

    def _recall(self, key: Any) -> bool:
        """Put an item of the old set into the young one; return True."""
        self._put((key,))
        return True

    def _put(self, keys: Iterable[Any]) -> None:
        young = self._young
        young.update(keys)
        if len(young) >= self._size:
            with self._lock:
                # Another thread may have done it. In this order no item is missing in between.
                if self._young is young:
                    self._old = young
                    self._young = set()

    def confirm(self, sent: float) -> None:
        """Note that the reply to a request sent then, or later, brought this cache's header."""
        self._answers_until = min(sent + self._caching.max_staleness, self._until)

    def doubt(self) -> None:
        """Answer nothing until the next `confirm`; the items stay."""
        self._answers_until = -math.inf

    def end(self) -> None:
        """Answer nothing any more, whatever is confirmed or kept by operations under way."""
        self._now = _end_of_time

    @property
    def is_over(self) -> bool:
        """Whether it was ended, or answers nothing any more because of its age."""
        if self._now is _end_of_time:
            return True
        return self._until < math.inf and self._until <= self._now()


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


def _key_of(item: Any) -> Any:
    """Return what stands for an item in a set, None for one that is not kept."""
    if type(item) is str:
        return item
    return (item,) if type(item) is bytes else None


def keys_of(items: Sequence[Any]) -> Keys:
    """Return what stands for each item in a set, None for one that is not kept."""
    kinds = set(map(type, items))
    if kinds == {str}:
        return items
    return list(zip(items, strict=True)) if kinds == {bytes} else list(map(_key_of, items))


def flags_of(missed: Iterable[int], count: int) -> list[bool]:
    """Return for each of count items whether it is kept.

    >>> flags_of([1], 3)
    [True, False, True]
    """
    known = [True] * count
    for index in missed:
        known[index] = False
    return known


def _end_of_time() -> float:
    return math.inf
