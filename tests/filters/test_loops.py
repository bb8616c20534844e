"""AsyncBloomFilter attaches lazily, and works on several event loops, one after the other."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis.asyncio
from lock_tools import queue_of
from servers import wait_until

from bloomlock import AsyncBloomFilter, AsyncLock, BloomFilter, Lock
from bloomlock.catalog import delete_filter
from bloomlock.errors import ConfigurationError, FilterLostError

# Connections of a loop that has ended can only be closed by the garbage collection.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("url", {}),
        ("client", {"near_cache": 9}),
        ("client", {"strategy": "lock"}),
        ("blocking pool", {}),
    ],
    ids=str,
)
def test_it_works_at_the_first_try_in_each(r, valkey, given, options):
    made = AsyncBloomFilter("x", 1000, client=make(given, valkey), **options)

    async def add(run):
        answers = await asyncio.gather(*(made.add(f"{run} {number}") for number in range(30)))
        assert answers == [True] * 30
        assert await made.add(f"{run} 1") is False
        assert await made.count() > 0

    for run in range(3):
        asyncio.run(add(run))
    asyncio.run(made.close())
    assert all(BloomFilter.open("x", client=r).exists_many(f"{run} 3" for run in range(3)))


def make(given, url):
    if given == "url":
        return url
    if given == "client":
        return redis.asyncio.Redis.from_url(url)
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=3)
    return redis.asyncio.Redis(connection_pool=pool)


@pytest.mark.usefixtures("r")
def test_two_loops_at_once_are_refused_in_one_sentence(valkey):
    """The first loop runs, and waits in another thread, when the second one asks."""
    made = AsyncBloomFilter("x", 1000, client=valkey)
    begun, over = threading.Event(), threading.Event()

    async def first():
        assert await made.add("a")
        begun.set()
        await asyncio.to_thread(over.wait)
        return await made.add("b")

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asyncio.run, first())
        begun.wait()
        try:
            with pytest.raises(ConfigurationError, match="one event loop at a time"):
                asyncio.run(made.add("c"))
        finally:
            over.set()
        assert answer.result()
    assert asyncio.run(made.add("c"))


def test_a_lock_that_another_loop_is_refused_is_still_waited_for(r, valkey):
    """The watchdog of the loop that ended would renew it, had the refused one become its own."""
    lock, holder = AsyncLock("x", valkey), Lock("x", r)

    async def take():
        async with lock:
            return lock.remaining() > 0

    holder.acquire()
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(asyncio.run, take())
        try:
            wait_until(lambda: queue_of(r, holder) == 1)
            with pytest.raises(ConfigurationError, match="one event loop at a time"):
                asyncio.run(lock.acquire())
        finally:
            holder.release()
        assert taken.result()


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
