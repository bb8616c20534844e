"""pottery's BloomFilter, asked for each item before it is given it: `add` answers nothing."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import redis
from pottery import BloomFilter
from pottery.exceptions import InefficientAccessWarning

from benchmarks.place import Place, connect, parse_url

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence


# It warns of its own way of emptying a filter.
warnings.filterwarnings("ignore", category=InefficientAccessWarning)


class _Connection(redis.UnixDomainSocketConnection):
    """Has the host and port that pottery looks for, and does not use them."""

    def __init__(self, *, host: str, port: int, **options: Any) -> None:
        del host, port
        super().__init__(**options)  # type: ignore[no-untyped-call]  # redis-py left it so


def _connect(url: str) -> redis.Redis:
    options = parse_url(url)
    if "path" not in options:
        return connect(url)
    named = {"host": "", "port": 0, "db": 0, **options, "connection_class": _Connection}
    return redis.Redis(connection_pool=redis.ConnectionPool(**named))


class Contender(base.Contender):
    """Two transactions for an `add`, of which another client may come between."""

    def __init__(self, place: Place) -> None:
        """Connect."""
        self._filter = BloomFilter(
            redis=_connect(place.url),
            key=place.key,
            num_elements=place.capacity,
            false_positives=place.error_rate,
        )

    def add(self, item: str) -> bool:
        """See base."""
        if item in self._filter:
            return False
        self._filter.add(item)
        return True

    def exists(self, item: str) -> bool:
        """See base."""
        return item in self._filter

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        known = self.exists_many(items)
        self.update([item for item, seen in zip(items, known, strict=True) if not seen])
        return [not seen for seen in known]

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return list(self._filter.contains_many(*items))

    def update(self, items: Sequence[str]) -> None:
        """See base."""
        self._filter.update(items)

    def clear(self) -> None:
        """See base."""
        self._filter.clear()
