"""The asyncio face: the same answers, and cancellation that harms nobody."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis
import redis.asyncio
from strategies import STRATEGIES

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    FilterLostError,
    FilterNotFoundError,
    delete_filter,
)


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
def test_each_face_reads_what_the_other_wrote(client, server_url, strategy, options):
    async def run():
        shared = redis.asyncio.Redis.from_url(server_url, **options)
        made = AsyncBloomFilter("x", 5000, 1e-9, client=shared, strategy=strategy)
        assert repr(made).startswith("<AsyncBloomFilter 'x': 5000 items")
        assert made.generation == 0
        assert await made.add("by asyncio") is True
        assert await made.add_many(map(str, range(1500))) == [True] * 1500
        await made.update(["1", "one more"])
        assert await made.exists_many(["by asyncio", "no"]) == [True, False]
        assert await made.count() == pytest.approx(1502, abs=3)
        other = BloomFilter.open("x", client=client, strategy=strategy)
        assert other.exists("by asyncio")
        assert other.add("by threads")
        assert await made.exists("by threads")
        assert (await made.info()).generation == other.generation == made.generation
        copied = await made.copy("y")
        assert await copied.exists("by threads")
        await made.clear()
        assert not await made.exists("by asyncio")
        with pytest.raises(FilterLostError):
            other.exists("by asyncio")
        assert await made.delete()
        with pytest.raises(FilterLostError):
            await made.exists("by asyncio")
        await made.reattach()
        assert await made.add("by asyncio")
        with pytest.raises(FilterNotFoundError):
            await AsyncBloomFilter.open("z", client=shared)
        await shared.aclose()

    asyncio.run(run())


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


def test_a_cancelled_call_leaves_its_neighbours_their_own_answers(valkey, strategy, seed):
    redis.Redis.from_url(valkey).flushall()
    chance = random.Random(seed)

    async def run():
        shared = redis.asyncio.Redis.from_url(valkey, max_connections=100)
        made = await AsyncBloomFilter("x", 5000, 1e-9, client=shared, strategy=strategy)
        await made.add_many([f"there {n}" for n in range(50)])
        for _ in range(15):
            calls = {
                asyncio.ensure_future(made.exists(f"{kind} {n}")): kind == "there"
                for n in range(20)
                for kind in ("there", "not there")
            }
            await asyncio.sleep(chance.uniform(0, 0.002))
            for call in chance.sample(list(calls), 15):
                call.cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for expected, answer in zip(calls.values(), answers, strict=True):
                assert answer is expected or isinstance(answer, asyncio.CancelledError)
        await shared.aclose()

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
