"""AsyncBloomFilter attaches lazily, and once."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.catalog import delete_filter
from bloomlock.errors import FilterLostError


def test_concurrent_first_uses_agree(valkey):
    redis.Redis.from_url(valkey).flushall()

    async def run():
        async with AsyncBloomFilter("x", 1000, client=valkey) as made:
            lazy = AsyncBloomFilter("x", 1000, client=valkey)
            answers = await asyncio.gather(*(lazy.add("a") for _ in range(20)))
            assert sum(answers) == 1
            assert lazy.generation == made.generation
            await lazy.close()

    asyncio.run(run())


def test_entering_an_attached_object_makes_no_filter(valkey, r):
    """One that was opened, and deleted by another client before `async with`, stays deleted."""

    async def run():
        BloomFilter("x", 1000, client=valkey)
        opened = await AsyncBloomFilter.open("x", client=valkey)
        assert delete_filter("x", client=valkey)
        async with opened:
            assert r.keys() == []
            with pytest.raises(FilterLostError):
                await opened.add("a")
        assert r.keys() == []
        async with AsyncBloomFilter("x", 1000, client=valkey) as made:
            assert await made.add("a") is True

    asyncio.run(run())
