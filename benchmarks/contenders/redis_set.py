"""An exact set on the server, through redis-py: what most people use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import redis

from benchmarks.place import Place, connect

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPELINE = 10_000
"""Commands in one pipeline; redis-py keeps about a kilobyte for each."""


class Contender(base.Contender):
    """SADD and SISMEMBER.

    Args:
        place: Where.
        batch: "each": pipelines of SADDs, which answer for each item whether it is new;
            "count": one SADD with all items, which answers only how many are.
        retries: "default": redis-py's own; "none": a client made by `from_url`, which has none.
    """

    def __init__(
        self,
        place: Place,
        *,
        batch: Literal["each", "count"] = "each",
        retries: Literal["default", "none"] = "default",
    ) -> None:
        """Connect."""
        # Any: redis-py types every reply as "or awaitable".
        self._client: Any = (
            connect(place.url) if retries == "default" else redis.Redis.from_url(place.url)
        )
        self._key = place.key
        self._count = batch == "count"

    def add(self, item: str) -> bool:
        """See base."""
        return bool(self._client.sadd(self._key, item))

    def exists(self, item: str) -> bool:
        """See base."""
        return bool(self._client.sismember(self._key, item))

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base; with `batch="count"` the flags have the right sum and no order."""
        if self._count:
            new: int = self._client.sadd(self._key, *items)
            return [True] * new + [False] * (len(items) - new)
        answers: list[bool] = []
        for start in range(0, len(items), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for item in items[start : start + PIPELINE]:
                pipeline.sadd(self._key, item)
            answers += pipeline.execute()
        return answers

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        there: list[bool] = self._client.smismember(self._key, items)
        return there

    def update(self, items: Sequence[str]) -> None:
        """See base."""
        self._client.sadd(self._key, *items)

    def clear(self) -> None:
        """See base."""
        self._client.delete(self._key)
