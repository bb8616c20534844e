"""bloomlock itself: a filter on the server, its twin for asyncio, and one in the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.place import Place, connect
from bloomlock import AsyncBloomFilter, BloomFilter, MemoryBloomFilter

from .base import AsyncContender, Contender

if TYPE_CHECKING:
    from collections.abc import Sequence


class Shared(Contender):
    """A BloomFilter; `route` is that of its batches, all other options are the filter's own."""

    def __init__(self, place: Place, *, route: Any = "auto", **options: Any) -> None:
        self._filter = BloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=connect(place.url),
            prefix=place.prefix,
            **options,
        )
        self._route = route

    def add(self, item: str) -> bool:
        return self._filter.add(item)

    def exists(self, item: str) -> bool:
        return self._filter.exists(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        return self._filter.add_many(items, route=self._route)

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        return self._filter.exists_many(items, route=self._route)

    def update(self, items: Sequence[str]) -> None:
        self._filter.update(items, route=self._route)

    def clear(self) -> None:
        self._filter.clear()


class Tasks(AsyncContender):
    """One AsyncBloomFilter for all tasks: those that wait at the same time share round trips."""

    def __init__(self, place: Place, **options: Any) -> None:
        self._filter = AsyncBloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=place.url,
            prefix=place.prefix,
            **options,
        )

    async def add(self, item: str) -> bool:
        return await self._filter.add(item)

    async def clear(self) -> None:
        await self._filter.clear()


class Memory(Contender):
    """A MemoryBloomFilter, without any server."""

    def __init__(self, place: Place, **options: Any) -> None:
        self._filter = MemoryBloomFilter(place.capacity, place.error_rate, **options)

    def add(self, item: str) -> bool:
        return self._filter.add(item)

    def exists(self, item: str) -> bool:
        return self._filter.exists(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        return self._filter.add_many(items)

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        return self._filter.exists_many(items)

    def update(self, items: Sequence[str]) -> None:
        self._filter.update(items)

    def clear(self) -> None:
        self._filter.clear()
