"""Filters and sets that block: bloomlock's, Redis' sets, and RedisBloom.

Each function connects and returns the calls, bound to a key, with as little around them as can be.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import ResponseError

from benchmarks.jobs import cut, items
from benchmarks.place import Place, connect
from bloomlock import BloomFilter, Growth

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY = ("add_many", "exists_many", "update")
CHUNK = 10_000
"""Commands in one pipeline; redis-py keeps about a kilobyte for each."""
TIMES = 64
"""By which a filter that grows was guessed too small."""


def shared(place: Place, *, route: str = "", **options: Any) -> Any:
    """Return a BloomFilter; `route` is that of its batches, all other options are its own."""
    made = BloomFilter(**place.of_a_filter(), client=connect(place.url), **options)
    if not route:
        return made
    routed = {name: partial(getattr(made, name), route=route) for name in MANY}
    return SimpleNamespace(add=made.add, exists=made.exists, clear=made.clear, **routed)


def discarding(place: Place) -> Any:
    """Return a filter in which a quarter of the capacity was added and discarded."""
    made = shared(place, shards=1)
    for some in cut(items("gone", place.capacity // 4), CHUNK):
        made.update(some)
        made.discard_many(some)
    return made


def grown(place: Place) -> Any:
    """Return a filter that was made for a 64th of its items and holds three quarters of them."""
    small = replace(place, capacity=place.capacity // TIMES)
    made = shared(small, shards=1, on_full=Growth(up_to=place.capacity), route="items")
    for some in cut(items("grown", place.capacity * 3 // 4), CHUNK):
        made.update(some)
    return made


def sadd(place: Place, *, retries: bool = True) -> Any:
    """Return SADD and SISMEMBER by redis-py, what most people use; a batch is a pipeline."""
    # A client made by `from_url` has no retries (redis-py 8.1).
    client: Any = connect(place.url) if retries else redis.Redis.from_url(place.url)
    key = place.name

    def add_many(items: Sequence[str]) -> list[int]:
        answers: list[int] = []
        for some in cut(items, CHUNK):
            pipeline = client.pipeline(transaction=False)
            for item in some:
                pipeline.sadd(key, item)
            answers += pipeline.execute()
        return answers

    return SimpleNamespace(
        add=partial(client.sadd, key),
        exists=partial(client.sismember, key),
        add_many=add_many,
        exists_many=partial(client.smismember, key),
        update=lambda items: client.sadd(key, *items),
        clear=partial(client.delete, key),
    )


def counted(place: Place) -> Any:
    """Return SADD of a whole batch, which only counts what is new: the flags have their sum."""
    made = sadd(place)

    def add_many(items: Sequence[str]) -> list[bool]:
        new = made.update(items)
        return [True] * new + [False] * (len(items) - new)

    return SimpleNamespace(add_many=add_many, clear=made.clear)


def exact(place: Place) -> Any:
    """Return SMISMEMBER and SADD in one transaction: exact for a batch that repeats no item."""
    client = connect(place.url)

    def add_many(items: Sequence[str]) -> list[bool]:
        pipeline = client.pipeline(transaction=True)
        pipeline.smismember(place.name, items)
        pipeline.sadd(place.name, *items)
        there, _ = pipeline.execute()
        return [not each for each in there]

    return SimpleNamespace(add_many=add_many, clear=partial(client.delete, place.name))


def bloom(place: Place) -> Any:
    """Return the commands of RedisBloom, a C module inside the server, by redis-py."""
    client, key = connect(place.url), place.name
    commands: Any = client.bf()

    def clear() -> None:
        client.delete(key)
        reserve(place)

    reserve(place)
    return SimpleNamespace(
        add=partial(commands.add, key),
        exists=partial(commands.exists, key),
        add_many=lambda items: commands.madd(key, *items),
        exists_many=lambda items: commands.mexists(key, *items),
        update=lambda items: commands.madd(key, *items),
        clear=clear,
    )


def reserve(place: Place) -> None:
    """Create RedisBloom's filter, unless another process has."""
    with connect(place.url) as client:
        try:
            client.execute_command("BF.RESERVE", place.name, place.error_rate, place.capacity)
        except ResponseError as error:
            if "exists" not in str(error):
                raise


def ping(place: Place, *, way: str = "client") -> Any:
    """Return a round trip, whatever is asked: redis-py's `ping()`, or bytes on its connection."""
    client = connect(place.url)
    connection: Any = client.connection_pool.get_connection() if way == "bytes" else None

    def call(_item: str = "") -> object:
        if connection is None:
            return client.ping()
        connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"])
        return connection.read_response()

    return SimpleNamespace(add=call, exists=call, acquire=call, release=call)
