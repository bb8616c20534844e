"""Several real processes offer the same items: exact counts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import redis
from processes import FORKS
from strategies import EXACT

from bloomlock import AsyncBloomFilter, BloomFilter

pytestmark = pytest.mark.processes
WORKERS = 8
PATIENCE = 500
"""Seconds that eight processes may take on a machine that has other work."""
NEAR = 32
"""So many items of an order of adds are mixed with each other, and not with those after them.

So all processes are near each other, and offer the same item at the same moment ten times as often
as in orders without bounds. In these, the number of items does not change how often that is: with
more of them each is rarer at any moment.
"""
ERROR_RATE = 1e-9


def offer(url, strategy, how, items, seed, barrier, results):
    """Offer all items in an order of one's own; report which were new."""
    order = in_own_order(items, seed, NEAR if how == "add" else len(items))
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


def in_own_order(items, seed, near):
    """Return the items, each block of so many of them in a random order."""
    chance = random.Random(seed)
    blocks = (items[start : start + near] for start in range(0, len(items), near))
    return [item for block in blocks for item in chance.sample(block, len(block))]


async def offer_async(url, strategy, order):
    async with AsyncBloomFilter("race", 50_000, ERROR_RATE, client=url, strategy=strategy) as made:
        won = []
        for start in range(0, len(order), 500):
            # They go out together; some are offered twice.
            batch = order[start : start + 500] + order[start : start + 50]
            answers = await asyncio.gather(*(made.add(item) for item in batch))
            won += [item for item, new in zip(batch, answers, strict=True) if new]
        return won


def race(url, strategy, how, count, seed):
    redis.Redis.from_url(url).flushall()
    items = [f"https://example.org/{number}" for number in range(count)]
    # Forked from a process that has imported everything, so they begin at about the same time.
    barrier, results = FORKS.Barrier(WORKERS), FORKS.Queue()
    workers = [
        FORKS.Process(
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
def test_every_item_has_exactly_one_winner_by_add(server_url, strategy, seed):
    won, items = race(server_url, strategy, "add", 500, seed)
    assert won == Counter(items)


@pytest.mark.parametrize("strategy", EXACT)
def test_every_item_has_exactly_one_winner_by_add_many(valkey, strategy, seed):
    # Batches of up to a thousand: half of the items are in batches of two workers at a moment.
    won, items = race(valkey, strategy, "add_many", 4_000, seed)
    assert won == Counter(items)


@pytest.mark.parametrize("strategy", ["atomic", "lock"])
def test_every_item_has_exactly_one_winner_by_asyncio(valkey, strategy, seed):
    won, items = race(valkey, strategy, "asyncio", 500, seed)
    assert won == Counter(items)


def test_a_pipeline_denies_nothing_but_crowns_anybody(valkey, seed):
    # The control: without atomicity items have several winners, or none. None of them is denied.
    won, items = race(valkey, "pipeline", "add", 500, seed)
    assert set(won) <= set(items)
