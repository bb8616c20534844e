"""What redis.asyncio offers for the same question: SADD, or BF.ADD where the module is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import redis.asyncio

from . import base
from .redis_bloom import reserve

if TYPE_CHECKING:
    from benchmarks.place import Place

CONNECTIONS = 50
"""The default pool raises an error when 1,000 tasks ask it at once; 50 is as fast as any number."""


class Contender(base.AsyncContender):
    """One command for each item, on the connections of one client.

    Args:
        place: Where.
        command: "sadd" or "bf".
        connections: "pool": tasks wait for one of `CONNECTIONS`; "single": all share one.
    """

    def __init__(
        self,
        place: Place,
        *,
        command: Literal["sadd", "bf"] = "sadd",
        connections: Literal["pool", "single"] = "pool",
    ) -> None:
        """Connect at the first use, in the loop that uses it."""
        self._place = place
        # Any: redis-py types every reply as "or awaitable".
        self._client: Any = (
            redis.asyncio.Redis.from_url(place.url, single_connection_client=True)
            if connections == "single"
            else redis.asyncio.Redis.from_pool(
                redis.asyncio.BlockingConnectionPool.from_url(
                    place.url, max_connections=CONNECTIONS, timeout=None
                )
            )
        )
        self._add: Any = self._client.sadd if command == "sadd" else self._client.bf().add
        self._reserves = command == "bf"
        if self._reserves:
            reserve(place)

    async def add(self, item: str) -> bool:
        """See base."""
        return bool(await self._add(self._place.key, item))

    async def clear(self) -> None:
        """See base."""
        await self._client.delete(self._place.key)
        if self._reserves:
            reserve(self._place)
