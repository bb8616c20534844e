"""bloomlock itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from benchmarks.place import Place, connect
from bloomlock import BloomFilter

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence


class Contender(base.Contender):
    """A filter with one of the strategies."""

    def __init__(
        self, place: Place, *, strategy: str, on_unknown: Literal["raise", "new"] = "raise"
    ) -> None:
        """Create the filter or attach to it."""
        self._filter = BloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=connect(place.url),
            strategy=strategy,
            on_unknown=on_unknown,
            prefix=place.prefix,
        )

    def add(self, item: str) -> bool:
        """See base."""
        return self._filter.add(item)

    def exists(self, item: str) -> bool:
        """See base."""
        return self._filter.exists(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return self._filter.add_many(items)
