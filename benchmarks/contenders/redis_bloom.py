"""RedisBloom, a C module inside the server, through redis-py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from benchmarks.place import Place, connect

from . import base

if TYPE_CHECKING:
    from collections.abc import Sequence


def reserve(place: Place) -> None:
    """Create the filter, unless another process has."""
    with connect(place.url) as client:
        try:
            client.execute_command("BF.RESERVE", place.key, place.error_rate, place.capacity)
        except ResponseError as error:
            if "exists" not in str(error):
                raise


class Contender(base.Contender):
    """BF.ADD, BF.EXISTS, BF.MADD and BF.MEXISTS.

    Args:
        place: Where.
        chunk: Items in one BF.MADD; 0: all of a batch.
        pipelined: Whether a batch is a pipeline of BF.ADDs and not a BF.MADD.
    """

    def __init__(self, place: Place, *, chunk: int = 0, pipelined: bool = False) -> None:
        """Connect, and create the filter."""
        self._place = place
        self._key = place.key
        self._chunk = chunk
        self._pipelined = pipelined
        self._client = connect(place.url)
        commands: Any = self._client.bf()
        self._add, self._exists = commands.add, commands.exists
        self._madd, self._mexists = commands.madd, commands.mexists
        reserve(place)

    def add(self, item: str) -> bool:
        """See base."""
        return bool(self._add(self._key, item))

    def exists(self, item: str) -> bool:
        """See base."""
        return bool(self._exists(self._key, item))

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        if self._pipelined:
            pipeline: Any = self._client.pipeline(transaction=False)
            for item in items:
                pipeline.execute_command("BF.ADD", self._key, item)
            return [bool(new) for new in pipeline.execute()]
        return self._ask(self._madd, items)

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """See base."""
        return self._ask(self._mexists, items)

    def _ask(self, command: Any, items: Sequence[str]) -> list[bool]:
        step = self._chunk or len(items)
        answers: list[bool] = []
        for start in range(0, len(items), step):
            answers += command(self._key, *items[start : start + step])
        return answers

    def clear(self) -> None:
        """See base."""
        self._client.delete(self._key)
        reserve(self._place)
