"""The last N items, by use, without a lock.

In two halves: what is used goes to the young half, and when that holds N items it becomes the old
one, and the old one is dropped. So the last N different items are kept for certain, and 2 N at
most (one more for each further thread that is putting one in).
"""

from __future__ import annotations

from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class LastItems:
    """The last N items; safe to use from many threads.

    Only exact `str` and `bytes` are ever kept: what another class thinks of equality is not asked.

    Args:
        size: N, at least 1.
    """

    __slots__ = ("_old", "_size", "_young")

    def __init__(self, size: int) -> None:
        """Start with none."""
        self._size = size
        self._young = _Half()
        self._old = _Half()

    def which(self, items: Sequence[Any]) -> list[bool]:
        """Tell of each item whether it is kept, which is a use of it."""
        young, old = self._young, self._old
        found = []
        for kind, run in groupby(items, type):
            mine, others = young.get(kind, ()), old.get(kind, ())
            found += [item in mine or (item in others and self._recall(item)) for item in run]
        return found

    def keep(self, item: Any) -> None:
        """Put an item in."""
        young = self._young
        kept = young.get(type(item))
        if kept is not None:
            kept.add(item)
            self._turn_if_full(young)

    def keep_many(self, items: Iterable[Any]) -> None:
        """Put items in, as one by one in this order."""
        for kind, run in groupby(items, type):
            if kind in self._young:
                self._keep_run(kind, run)

    def count(self) -> int:
        """Return how many different items are kept; `"a"` and `b"a"` are two here."""
        young, old = self._young, self._old
        return sum(len(young[kind] | old[kind]) for kind in (str, bytes))

    def _recall(self, item: Any) -> bool:
        """Tell whether an item is in the old half, and if so put it into the young one."""
        if item not in self._old[type(item)]:
            return False
        self.keep(item)
        return True

    def _keep_run(self, kind: type, run: Iterator[Any]) -> None:
        while True:
            young = self._young
            some = list(islice(run, max(1, self._size - young.count())))
            if not some:
                return
            young[kind].update(some)
            self._turn_if_full(young)

    def _turn_if_full(self, young: _Half) -> None:
        if young.count() >= self._size:
            # In this order nothing is out of sight in between. Whoever else does the same for the
            # same half, however late, comes to the same successor: nothing is lost.
            self._old = young
            self._young = young.successor()


class _Half(dict[type, set[Any]]):
    """The items used since the half before was full, by their type.

    By type, because `"a"` and `b"a"` have the same hash, and to compare them is an error under
    `python -bb`.
    """

    __slots__ = ("_next", "_of_bytes", "_of_str")

    def __init__(self) -> None:
        self._of_str: set[Any] = set()
        self._of_bytes: set[Any] = set()
        super().__init__({str: self._of_str, bytes: self._of_bytes})
        self._next: dict[None, _Half] = {}

    def count(self) -> int:
        return len(self._of_str) + len(self._of_bytes)

    def successor(self) -> _Half:
        """Return the half that follows this one, the same to every caller."""
        return self._next.setdefault(None, _Half())
