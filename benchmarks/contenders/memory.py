"""bloomlock's filter in the process, without any server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bloomlock import MemoryBloomFilter

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.place import Place


class Contender(base.Contender):
    """A MemoryBloomFilter."""

    def __init__(self, place: Place, *, layout: Literal["classic", "blocked"] = "classic") -> None:
        """Make it."""
        self._filter = MemoryBloomFilter(place.capacity, place.error_rate, layout=layout)

    def add(self, item: str) -> bool:
        """See base."""
        return self._filter.add(item)

    def exists(self, item: str) -> bool:
        """See base."""
        return self._filter.exists(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return self._filter.add_many(items)

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return self._filter.exists_many(items)

    def update(self, items: Sequence[str]) -> None:
        """See base."""
        self._filter.update(items)

    def clear(self) -> None:
        """See base."""
        self._filter.clear()
