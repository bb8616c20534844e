"""Positive answers kept in the process; docs/internals/protocols.md says why they are true.

Looking up takes no lock. What several threads change at once is a set of items, or is changed by
one assignment: at worst an item is forgotten, or a deadline is nearer than it had to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bloomlock.errors import ConfigurationError
from bloomlock.runtime.forks import LockOwner
from bloomlock.sizing import MAX_CAPACITY, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Keys = Sequence[Any]

MAX_STALENESS_SECONDS = 1.0
"""Default of max_staleness."""


@dataclass(frozen=True)
class NearCache:
    """How many positive answers an object keeps, and for how long.

    Attributes:
        size: The last N answers are kept for certain, and at most 2 N.
        max_staleness: For how many seconds after a clear by another client they may be given still.
    """

    size: int
    max_staleness: float = MAX_STALENESS_SECONDS

    def check(self) -> None:
        """Raise ConfigurationError for what is no such number."""
        check_whole("near_cache", self.size, 0, MAX_CAPACITY, "of items, 0 for none")
        seconds = self.max_staleness
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < math.inf:
            raise ConfigurationError(
                f"max_staleness must be a number of seconds above 0, not {seconds!r:.80}"
            )


class KeptAnswers(LockOwner):
    """The last N items seen in one generation; safe to use from many threads.

    A used item goes to the young set. When that holds N items it becomes the old set, and the old
    set is dropped. So the last N different items are kept for certain, and 2 N at most (one more
    for each further thread that puts one in).

    Only exact `str` and `bytes` are kept: how another class defines equality is not relied on. A
    `bytes` stands in a tuple, because comparing it with a `str` is an error under `python -bb`.
    """

    def __init__(
        self, header: int, options: NearCache, clock: Callable[[], float], *, lasts: bool = True
    ) -> None:
        """Keep nothing yet; not `lasts`: an item may be discarded without any sign."""
        super().__init__()
        self.header = header
        self._until = math.inf if lasts else clock() + options.max_staleness
        self._max_staleness = options.max_staleness
        self._size = options.size
        self._now = clock
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
        if not self._now() < self._answers_until:
            return range(len(keys))
        young, old = self._young, self._old
        return [
            index
            for index, key in enumerate(keys)
            if key not in young and not (key in old and self._recall(key))
        ]

    def keep(self, item: Any) -> None:
        self.keep_many((item,))

    def keep_many(self, items: Sequence[Any]) -> None:
        keys = [key for key in keys_of(items) if key is not None]
        start = 0
        while start < len(keys):
            stop = start + max(1, self._size - len(self._young))
            self._put(keys[start:stop])
            start = stop

    def _recall(self, key: Any) -> bool:
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

    def validate(self, sent: float) -> None:
        """Note that the reply to a request sent then, or later, brought this cache's header."""
        self._answers_until = min(sent + self._max_staleness, self._until)

    def suspend(self) -> None:
        """Answer nothing until the next `validate`; the items stay."""
        self._answers_until = -math.inf

    def end(self) -> None:
        """Answer nothing any more, whatever is confirmed or kept by operations under way."""
        self._now = lambda: math.inf

    @property
    def is_over(self) -> bool:
        return self._until <= self._now()


class CacheTicket(NamedTuple):
    near: KeptAnswers
    since: float

    def validate(self) -> None:
        self.near.validate(self.since)


def _key_of(item: Any) -> Any:
    if type(item) is str:
        return item
    return (item,) if type(item) is bytes else None


def keys_of(items: Sequence[Any]) -> Keys:
    """Return what stands for each item in a set, None for an item that is not kept."""
    kinds = set(map(type, items))
    if kinds == {str}:
        return items
    return list(zip(items, strict=True)) if kinds == {bytes} else list(map(_key_of, items))
