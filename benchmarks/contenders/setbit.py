"""A Bloom filter as one writes it by hand: k SETBITs in a pipeline of redis-py."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mmh3

from benchmarks.place import Place, connect

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPELINE = 1_000
"""Items in one pipeline."""


class Contender(base.Contender):
    """All SETBITs, or GETBITs, of a batch in one round trip; no transaction, no header."""

    def __init__(self, place: Place) -> None:
        """Connect; size and number of hashes are those of the usual formula."""
        self._client: Any = connect(place.url)  # Any: redis-py types replies as "or awaitable"
        self._key = place.key
        self._bits = math.ceil(-place.capacity * math.log(place.error_rate) / math.log(2) ** 2)
        self._hashes = math.ceil(-math.log2(place.error_rate))

    def add(self, item: str) -> bool:
        """See base."""
        return self.add_many([item])[0]

    def exists(self, item: str) -> bool:
        """See base."""
        return self.exists_many([item])[0]

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base; an item that the batch repeats is answered by its own first time."""
        return [not all(bits) for bits in self._ask(items, write=True)]

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return [all(bits) for bits in self._ask(items, write=False)]

    def clear(self) -> None:
        """See base."""
        self._client.delete(self._key)

    def _ask(self, items: Sequence[str], *, write: bool) -> list[list[int]]:
        rows: list[list[int]] = []
        for start in range(0, len(items), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for item in items[start : start + PIPELINE]:
                first, step = mmh3.hash64(item, signed=False)
                for offset in range(first, first + self._hashes * step, step):
                    if write:
                        pipeline.setbit(self._key, offset % self._bits, 1)
                    else:
                        pipeline.getbit(self._key, offset % self._bits)
            bits = pipeline.execute()
            rows += [bits[at : at + self._hashes] for at in range(0, len(bits), self._hashes)]
        return rows
