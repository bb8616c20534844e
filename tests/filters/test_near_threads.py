"""The near-cache of an object that several threads share."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest
import redis
import redis.asyncio
from near_cache_tools import (
    MANY,
    Clock,
)

from bloomlock import (
    BloomFilter,
)


def offer(made, items, seed, wins, index):
    chance = random.Random(seed + index)
    for item in chance.sample(items, len(items)):
        if made.add(item):
            wins.append(item)
        assert made.exists(item)


def together(count, work, *others):
    """Run `work(index)` in threads, and the others beside them; return when all are done."""
    failed: list[BaseException] = []

    def guarded(run, *arguments):
        try:
            run(*arguments)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work, index)) for index in range(count)]
    threads += [threading.Thread(target=guarded, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "lock"])
@pytest.mark.parametrize("size", [7, MANY])
def test_threads_that_share_one_object(valkey, strategy, size, seed):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 5000, client=client, strategy=strategy, near_cache=size)
        items = [str(number) for number in range(150)]
        wins: list[str] = []
        together(4, partial(offer, made, items * 2, seed, wins))
        assert sorted(wins) == sorted(items)


@pytest.mark.parametrize("by", ["the object", "another client", "deletion"])
def test_after_a_clear_every_item_is_new_once(valkey, r, by, seed):
    """Clears in the middle of adds; after each of them exactly one winner for each item."""
    made = BloomFilter("x", 5000, client=r, near_cache=MANY, on_lost="recreate")
    clock = Clock(made)
    other = BloomFilter.open("x", client=r)
    items = [str(number) for number in range(100)]

    def clear():
        if by == "the object":
            made.clear()
        elif by == "another client":
            other.clear()
        else:
            other.delete()
            BloomFilter("x", 5000, client=r)

    def add_anyhow(index):
        offer_anyhow = random.Random(seed + index)
        for item in offer_anyhow.choices(items, k=100):
            made.add(item)

    for number in range(8):
        together(3, add_anyhow, clear)
        clear()
        if by != "the object":
            clock.now += 1
        wins: list[str] = []
        together(3, partial(offer, made, items, seed + number, wins))
        assert sorted(wins) == sorted(items)
