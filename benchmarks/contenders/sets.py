"""Exact sets: on the server by several clients, behind a set of the process, and in it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import hiredis
import redis
import redis.asyncio

from benchmarks.place import Place, connect, open_socket, parse_url, tcp_url

from .base import AsyncContender, Contender
from .filters import reserve

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPELINE = 10_000
"""Commands in one pipeline; redis-py keeps about a kilobyte for each."""
CONNECTIONS = 50
"""The default pool raises an error when 1,000 tasks ask it at once; 50 is as fast as any number."""


class Pipelined(Contender):
    """SADD and SISMEMBER by redis-py, what most people use; a batch is a pipeline of SADDs.

    `retries="none"` is a client made by `from_url`, which has none.
    """

    def __init__(self, place: Place, *, retries: str = "default") -> None:
        # Any: redis-py types every reply as "or awaitable".
        self._client: Any = (
            connect(place.url) if retries == "default" else redis.Redis.from_url(place.url)
        )
        self._key = place.key

    def add(self, item: str) -> bool:
        return bool(self._client.sadd(self._key, item))

    def exists(self, item: str) -> bool:
        return bool(self._client.sismember(self._key, item))

    def add_many(self, items: Sequence[str]) -> list[bool]:
        answers: list[bool] = []
        for start in range(0, len(items), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for item in items[start : start + PIPELINE]:
                pipeline.sadd(self._key, item)
            answers += pipeline.execute()
        return answers

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        there: list[bool] = self._client.smismember(self._key, items)
        return there

    def update(self, items: Sequence[str]) -> None:
        self._client.sadd(self._key, *items)

    def clear(self) -> None:
        self._client.delete(self._key)


class Counted(Pipelined):
    """A batch is one SADD, which only counts what is new: the flags have the right sum."""

    def add_many(self, items: Sequence[str]) -> list[bool]:
        new: int = self._client.sadd(self._key, *items)
        return [True] * new + [False] * (len(items) - new)


class Exact(Pipelined):
    """A batch is SMISMEMBER and SADD in one transaction: the fastest exact answer for each item."""

    def add_many(self, items: Sequence[str]) -> list[bool]:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.smismember(self._key, items)
        pipeline.sadd(self._key, *items)
        there, new = pipeline.execute()
        answers = [not each for each in there]
        if new < sum(answers):  # the batch repeats an item, which is new the first time
            met: set[str] = set()
            for index, item in enumerate(items):
                answers[index] = answers[index] and item not in met
                met.add(item)
        return answers


class Guarded(Exact):
    """A set of the process before all that is on the server: a page's links are mostly repeats."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._known: set[str] = set()

    def add(self, item: str) -> bool:
        if item in self._known:
            return False
        self._known.add(item)
        return super().add(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        known = self._known
        unknown = [item for item in dict.fromkeys(items) if item not in known]
        known.update(unknown)
        new = dict(zip(unknown, super().add_many(unknown), strict=True)) if unknown else {}
        return [new.pop(item, False) for item in items]

    def clear(self) -> None:
        super().clear()
        self._known.clear()


class Bare(Contender):
    """SADD written to a socket and read by hiredis, with no client around it."""

    def __init__(self, place: Place) -> None:
        self._socket = open_socket(place.url)
        self._reader = hiredis.Reader()
        self._key = place.key

    def add(self, item: str) -> bool:
        return bool(self._ask("SADD", self._key, item))

    def exists(self, item: str) -> bool:
        return bool(self._ask("SISMEMBER", self._key, item))

    def clear(self) -> None:
        self._ask("DEL", self._key)

    def _ask(self, *command: str | bytes) -> Any:
        reader = self._reader
        # Any: its types allow one argument only.
        packed = hiredis.pack_command(cast("Any", command))
        self._socket.sendall(packed)
        while (reply := reader.gets()) is False:
            reader.feed(self._socket.recv(65536))
        return reply


class InProcess(Contender):
    """A set of Python."""

    def __init__(self, _place: Place) -> None:
        self._set: set[str] = set()

    def add(self, item: str) -> bool:
        if item in self._set:
            return False
        self._set.add(item)
        return True

    def exists(self, item: str) -> bool:
        return item in self._set

    def update(self, items: Sequence[str]) -> None:
        self._set.update(items)

    def clear(self) -> None:
        self._set.clear()


class Tasks(AsyncContender):
    """One command for each item by redis.asyncio: SADD, or BF.ADD where the module is.

    Tasks wait for one of 50 connections, or (`single`) all share one.
    """

    def __init__(self, place: Place, *, command: str = "sadd", single: bool = False) -> None:
        self._place = place
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            place.url, max_connections=CONNECTIONS, timeout=None
        )
        self._client: Any = (
            redis.asyncio.Redis.from_url(place.url, single_connection_client=True)
            if single
            else redis.asyncio.Redis.from_pool(pool)
        )
        self._add: Any = self._client.sadd if command == "sadd" else self._client.bf().add
        self._reserves = command == "bf"
        if self._reserves:
            reserve(place)

    async def add(self, item: str) -> bool:
        return bool(await self._add(self._place.key, item))

    async def clear(self) -> None:
        await self._client.delete(self._place.key)
        if self._reserves:
            reserve(self._place)


class Glide(AsyncContender):
    """SADD by valkey-glide, whose core is written in Rust. It has no unix sockets: this is TCP."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: Any = None

    async def _connected(self) -> Any:
        if self._client is None:
            from glide import (  # noqa: PLC0415 - may not be installed
                GlideClient,
                GlideClientConfiguration,
                NodeAddress,
            )

            options = parse_url(tcp_url(self._place.url))
            node = NodeAddress(options["host"], options["port"])
            self._client = await GlideClient.create(GlideClientConfiguration([node]))
        return self._client

    async def add(self, item: str) -> bool:
        client = self._client or await self._connected()
        return bool(await client.sadd(self._place.key, [item]))

    async def clear(self) -> None:
        await (await self._connected()).delete([self._place.key])
