"""bloomlock itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from benchmarks.place import Place, connect
from bloomlock import BloomFilter

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence


class Contender(base.Contender):
    """A filter with one of the strategies, routes and layouts."""

    def __init__(
        self,
        place: Place,
        *,
        strategy: str = "atomic",
        route: Literal["auto", "items", "bitmap"] = "auto",
        layout: Literal["classic", "blocked"] = "classic",
        near_cache: int = 0,
        on_unknown: Literal["raise", "new"] = "raise",
    ) -> None:
        """Create the filter or attach to it."""
        self._filter = BloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=connect(place.url),
            strategy=strategy,
            layout=layout,
            near_cache=near_cache,
            on_unknown=on_unknown,
            prefix=place.prefix,
        )
        self._route = route

    def add(self, item: str) -> bool:
        """See base."""
        return self._filter.add(item)

    def exists(self, item: str) -> bool:
        """See base."""
        return self._filter.exists(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return self._filter.add_many(items, route=self._route)

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return self._filter.exists_many(items, route=self._route)

    def update(self, items: Sequence[str]) -> None:
        """See base."""
        self._filter.update(items, route=self._route)

    def clear(self) -> None:
        """See base."""
        self._filter.clear()
