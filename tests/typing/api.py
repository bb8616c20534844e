"""What a type checker is told about the public names; checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

import redis
import redis.asyncio  # noqa: TC002 - as a user would write it

from bloomlock import AsyncBloomFilter, BloomFilter, FilterInfo, OutcomeUnknownError


def threads(client: redis.Redis, cluster: redis.RedisCluster) -> None:
    pages = BloomFilter("pages", capacity=1000)
    BloomFilter("pages", 1000, 0.01, client=client, strategy="lua", seeds=[1, 2], on_full="raise")
    BloomFilter("pages", 1000, client=cluster, on_lost="recreate", on_unknown="new", shards=2)
    assert_type(BloomFilter.open("pages", client="redis://localhost"), BloomFilter)
    assert_type(pages.add("a"), bool)
    assert_type(pages.exists(b"a"), bool)
    assert_type("a" in pages, bool)
    assert_type(pages.add_many(["a", b"b"]), list[bool])
    assert_type(pages.exists_many(x for x in "ab"), list[bool])
    assert_type(pages.update({"a"}), int)
    assert_type(len(pages), int)
    assert_type(pages.count(), int)
    assert_type(pages.info(), FilterInfo)
    assert_type(pages.copy("other"), BloomFilter)
    assert_type(pages.delete(), bool)
    assert_type(pages.seeds, tuple[int, ...] | None)
    with pages as same:
        assert_type(same, BloomFilter)
    try:
        pages.add("a")
    except OutcomeUnknownError as error:
        assert_type(error.results, list[bool | None])
    # Each of these must be an error; mypy reports an ignore that is not needed.
    pages.add(5)  # type: ignore[arg-type]
    pages.add_many([5])  # type: ignore[list-item]
    BloomFilter("pages", "1000")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, on_full="explode")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, on_lost="ignore")  # type: ignore[arg-type]
    BloomFilter("pages", 1000, client=5)  # type: ignore[arg-type]


async def tasks(client: redis.asyncio.Redis) -> None:
    pages = await AsyncBloomFilter("pages", 1000, client=client)
    assert_type(pages, AsyncBloomFilter)
    assert_type(await AsyncBloomFilter.open("pages"), AsyncBloomFilter)
    assert_type(await pages.add("a"), bool)
    assert_type(await pages.exists("a"), bool)
    assert_type(await pages.add_many(["a"]), list[bool])
    assert_type(await pages.update(["a"]), int)
    assert_type(await pages.info(), FilterInfo)
    async with pages as same:
        assert_type(same, AsyncBloomFilter)
