"""Several real processes offer the same items: exact counts."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections import Counter

import pytest
import redis
from strategies import EXACT

from bloomlock import AsyncBloomFilter, BloomFilter

pytestmark = pytest.mark.processes
WORKERS = 8
PATIENCE = 500
"""Seconds that eight processes may take on a machine that has other work."""
ERROR_RATE = 1e-9


def offer(url, strategy, how, items, seed, barrier, results):
    """Offer all items in an order of one's own; report which were new."""
    order = list(items)
    random.Random(seed).shuffle(order)
    barrier.wait(PATIENCE)
    if how == "asyncio":
        results.put(asyncio.run(offer_async(url, strategy, order)))
        return
    made = BloomFilter("race", 50_000, ERROR_RATE, client=url, strategy=strategy)
    if how == "add":
        won = []
        for item in order:
            if made.add(item):
                won.append(item)
            # Nobody who has been answered may see a "no" afterwards.
            if not made.exists(item):
                won.append(f"{item} was denied")
    else:
        # Overlapping batches of uneven sizes, some items twice in one.
        won = []
        while order:
            size = 1 + len(order) % 997
            batch, order = order[:size], order[size:]
            batch += batch[:5]
            won += [item for item, new in zip(batch, made.add_many(batch), strict=True) if new]
            if not all(made.exists_many(batch)):
                won.append("denied")
    results.put(won)


async def offer_async(url, strategy, order):
    async with AsyncBloomFilter("race", 50_000, ERROR_RATE, client=url, strategy=strategy) as made:
        won = []
        for start in range(0, len(order), 500):
            # They go out together; some are offered twice.
            batch = order[start : start + 500] + order[start : start + 50]
            answers = await asyncio.gather(*(made.add(item) for item in batch))
            won += [item for item, new in zip(batch, answers, strict=True) if new]
        return won


def race(url, strategy, how, count):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    redis.Redis.from_url(url).flushall()
    items = [f"https://example.org/{number}" for number in range(count)]
    # Forked from a process that has imported everything, so they begin at about the same time.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "redis.asyncio", "bloomlock.filters.async_bloom"])
    barrier, results = context.Barrier(WORKERS), context.Queue()
    workers = [
        context.Process(
            target=offer, args=(url, strategy, how, items, seed + index, barrier, results)
        )
        for index in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    won = Counter(item for _ in workers for item in results.get(timeout=PATIENCE))
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    return won, items


@pytest.mark.parametrize("strategy", EXACT)
def test_every_item_has_exactly_one_winner_by_add(server_url, strategy):
    # An add under the lock takes longer.
    won, items = race(server_url, strategy, "add", 500 if strategy == "lock" else 2_000)
    assert won == Counter(items)


@pytest.mark.parametrize("strategy", EXACT)
def test_every_item_has_exactly_one_winner_by_add_many(valkey, strategy):
    # A batch takes the lock of each of its items. A fifth of the items is as dense: eight workers
    # offer each, in batches of up to a thousand over 1024 stripes.
    count = 4_000 if strategy == "lock" else 20_000
    won, items = race(valkey, strategy, "add_many", count)
    assert won == Counter(items)


@pytest.mark.parametrize("strategy", ["atomic", "lock"])
def test_every_item_has_exactly_one_winner_by_asyncio(valkey, strategy):
    won, items = race(valkey, strategy, "asyncio", 500 if strategy == "lock" else 2_000)
    assert won == Counter(items)


def test_a_pipeline_denies_nothing_but_crowns_anybody(valkey):
    # The control: without atomicity items have several winners, or none. None of them is denied.
    won, items = race(valkey, "pipeline", "add", 2_000)
    assert set(won) <= set(items)
