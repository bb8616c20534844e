"""bloomlock for asyncio: tasks that wait at the same time share their round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock import AsyncBloomFilter

from . import base

if TYPE_CHECKING:
    from benchmarks.place import Place


class Contender(base.AsyncContender):
    """One filter object for all tasks."""

    def __init__(self, place: Place, *, strategy: str = "atomic") -> None:
        """Connect at the first use, in the loop that uses it."""
        self._filter = AsyncBloomFilter(
            place.name,
            place.capacity,
            place.error_rate,
            client=place.url,
            strategy=strategy,
            prefix=place.prefix,
        )

    async def add(self, item: str) -> bool:
        """See base."""
        return await self._filter.add(item)

    async def clear(self) -> None:
        """See base."""
        await self._filter.clear()
