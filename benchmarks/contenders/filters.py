"""Other Bloom filters: RedisBloom, one written by hand, two packages, and rbloom in the process."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import mmh3
import redis
from redis.exceptions import ResponseError

from benchmarks.place import Place, connect, parse_url

from .base import Contender

if TYPE_CHECKING:
    from collections.abc import Sequence


def reserve(place: Place) -> None:
    """Create RedisBloom's filter, unless another process has."""
    with connect(place.url) as client:
        try:
            client.execute_command("BF.RESERVE", place.key, place.error_rate, place.capacity)
        except ResponseError as error:
            if "exists" not in str(error):
                raise


class RedisBloom(Contender):
    """BF.ADD, BF.EXISTS, BF.MADD and BF.MEXISTS, of a C module inside the server, by redis-py.

    `chunk`: items in one BF.MADD; 0: all of a batch. `pipelined`: a batch is a pipeline of BF.ADDs.
    """

    def __init__(self, place: Place, *, chunk: int = 0, pipelined: bool = False) -> None:
        self._place, self._key = place, place.key
        self._chunk, self._pipelined = chunk, pipelined
        self._client = connect(place.url)
        commands: Any = self._client.bf()
        self._add, self._exists = commands.add, commands.exists
        self._madd, self._mexists = commands.madd, commands.mexists
        reserve(place)

    def add(self, item: str) -> bool:
        return bool(self._add(self._key, item))

    def exists(self, item: str) -> bool:
        return bool(self._exists(self._key, item))

    def add_many(self, items: Sequence[str]) -> list[bool]:
        if self._pipelined:
            pipeline: Any = self._client.pipeline(transaction=False)
            for item in items:
                pipeline.execute_command("BF.ADD", self._key, item)
            return [bool(new) for new in pipeline.execute()]
        return self._ask(self._madd, items)

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        return self._ask(self._mexists, items)

    def _ask(self, command: Any, items: Sequence[str]) -> list[bool]:
        step = self._chunk or len(items)
        answers: list[bool] = []
        for start in range(0, len(items), step):
            answers += command(self._key, *items[start : start + step])
        return answers

    def clear(self) -> None:
        self._client.delete(self._key)
        reserve(self._place)


class ByHand(Contender):
    """k SETBITs, or GETBITs, for each item in a pipeline of redis-py; no transaction, no header."""

    PIPELINE = 1_000

    def __init__(self, place: Place) -> None:
        self._client: Any = connect(place.url)  # Any: redis-py types replies as "or awaitable"
        self._key = place.key
        self._bits = math.ceil(-place.capacity * math.log(place.error_rate) / math.log(2) ** 2)
        self._hashes = math.ceil(-math.log2(place.error_rate))

    def add(self, item: str) -> bool:
        return self.add_many([item])[0]

    def exists(self, item: str) -> bool:
        return self.exists_many([item])[0]

    def add_many(self, items: Sequence[str]) -> list[bool]:
        return [not all(bits) for bits in self._ask(items, write=True)]

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        return [all(bits) for bits in self._ask(items, write=False)]

    def clear(self) -> None:
        self._client.delete(self._key)

    def _ask(self, items: Sequence[str], *, write: bool) -> list[list[int]]:
        rows: list[list[int]] = []
        for start in range(0, len(items), self.PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for item in items[start : start + self.PIPELINE]:
                first, step = mmh3.hash64(item, signed=False)
                for offset in range(first, first + self._hashes * step, step):
                    if write:
                        pipeline.setbit(self._key, offset % self._bits, 1)
                    else:
                        pipeline.getbit(self._key, offset % self._bits)
            bits = pipeline.execute()
            rows += [bits[at : at + self._hashes] for at in range(0, len(bits), self._hashes)]
        return rows


class ScrapyRedisBloomFilter(Contender):
    """Its own BloomFilter, asked as its duplicates filter asks it: a round trip for each bit."""

    def __init__(self, place: Place) -> None:
        from scrapy_redis_bloomfilter.bloomfilter import BloomFilter  # noqa: PLC0415
        from scrapy_redis_bloomfilter.defaults import BLOOMFILTER_HASH_NUMBER  # noqa: PLC0415

        hashes = BLOOMFILTER_HASH_NUMBER
        bits = -hashes * place.capacity / math.log1p(-(place.error_rate ** (1 / hashes)))
        self._client, self._key = connect(place.url), place.key
        # The smallest power of 2 that holds the error rate.
        self._filter = BloomFilter(self._client, place.key, bit=math.ceil(math.log2(bits)))

    def add(self, item: str) -> bool:
        if self._filter.exists(item):
            return False
        self._filter.insert(item)
        return True

    def exists(self, item: str) -> bool:
        return bool(self._filter.exists(item))

    def clear(self) -> None:
        self._client.delete(self._key)


class _Connection(redis.UnixDomainSocketConnection):
    """Has the host and port that pottery looks for, and does not use them."""

    def __init__(self, *, host: str, port: int, **options: Any) -> None:
        del host, port
        super().__init__(**options)  # type: ignore[no-untyped-call]  # redis-py left it so


class Pottery(Contender):
    """pottery's BloomFilter, asked for each item before it is given it: `add` answers nothing."""

    def __init__(self, place: Place) -> None:
        from pottery import BloomFilter  # noqa: PLC0415 - may not be installed
        from pottery.exceptions import InefficientAccessWarning  # noqa: PLC0415 - as above

        # It warns of its own way of emptying a filter.
        warnings.filterwarnings("ignore", category=InefficientAccessWarning)
        options = parse_url(place.url)
        client = connect(place.url)
        if "path" in options:
            named = {"host": "", "port": 0, "db": 0, **options, "connection_class": _Connection}
            client = redis.Redis(connection_pool=redis.ConnectionPool(**named))
        self._filter = BloomFilter(
            redis=client,
            key=place.key,
            num_elements=place.capacity,
            false_positives=place.error_rate,
        )

    def add(self, item: str) -> bool:
        if item in self._filter:
            return False
        self._filter.add(item)
        return True

    def exists(self, item: str) -> bool:
        return item in self._filter

    def add_many(self, items: Sequence[str]) -> list[bool]:
        known = self.exists_many(items)
        self.update([item for item, seen in zip(items, known, strict=True) if not seen])
        return [not seen for seen in known]

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        return list(self._filter.contains_many(*items))

    def update(self, items: Sequence[str]) -> None:
        self._filter.update(items)

    def clear(self) -> None:
        self._filter.clear()


def _lasting(item: str) -> int:
    """Hash as bloomlock does; Python's own hash is another one in every process."""
    return mmh3.hash128(item, signed=True)


class Rbloom(Contender):
    """rbloom, written in Rust, in the process; with Python's hash, or one that can be stored."""

    def __init__(self, place: Place, *, lasting: bool = False) -> None:
        from rbloom import Bloom  # noqa: PLC0415 - may not be installed

        size = (place.capacity, place.error_rate)
        self._bloom = Bloom(*size, hash_func=_lasting) if lasting else Bloom(*size)

    def add(self, item: str) -> bool:
        if item in self._bloom:
            return False
        self._bloom.add(item)
        return True

    def exists(self, item: str) -> bool:
        return item in self._bloom

    def update(self, items: Sequence[str]) -> None:
        self._bloom.update(items)

    def clear(self) -> None:
        self._bloom.clear()
