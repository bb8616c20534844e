"""One winner for each item, whatever threads and processes do at the same time."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from contract.gaps import gaps
from processes import FORKS
from proxy import Proxy

from bloomlock import AsyncBloomFilter, BloomFilter

THREADS = 4
ITEMS = [f"item {number}" for number in range(120)]
DISCARDED = ["d1", "d2", "d3", "d4"]
KINDS = {
    "plain": {"capacity": 5000},
    "growing": {"capacity": 20, "on_full": "grow"},
    "window": {"capacity": 50_000, "window": 86_400},
}


@pytest.fixture
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("strategy", ["atomic", "lua", "pipeline"])
def test_a_clear_by_another_thread_of_the_object_is_no_loss(r, valkey, strategy, shards):
    """Before each command of the clear the other thread adds, and what it is told is right."""
    with Proxy(valkey, handshake=False) as proxy:
        made = BloomFilter("x", 2000, 1e-9, client=proxy.url, shards=shards, strategy=strategy)
        for gap in gaps(proxy):
            item = f"item {gap.number}"
            made.add("before")

            def add():
                assert made.add(item) is True  # noqa: B023 - it is called in this round
                assert made.exists_many([item, "nothing"]) == [True, False]  # noqa: B023

            with gap.before(add):
                made.clear()
            assert made.exists("before") is False
            assert made.add("after") is True
            assert made.exists("after") is True
        made.close()


def in_own_order(seed):
    """All items in an order of one's own, alone and in small batches."""
    chance = random.Random(seed)
    order = chance.sample(ITEMS, len(ITEMS))
    while order:
        size = chance.choice((1, 1, 7))
        yield order[:size]
        order = order[size:]


def offer(made, seed):
    """Offer all items; return what was new, and what was denied although it had been added."""
    told = []
    for batch in in_own_order(seed):
        new = [made.add(batch[0])] if len(batch) == 1 else made.add_many(batch)
        told += [item for item, is_new in zip(batch, new, strict=True) if is_new]
        there = made.exists_many(batch)
        told += [f"{item} denied" for item, seen in zip(batch, there, strict=True) if not seen]
    return told


@pytest.mark.free_running
@pytest.mark.usefixtures("_switch_often")
@pytest.mark.parametrize("strategy", ["atomic", "lock", "growing"])
def test_threads_that_share_one_object(r, valkey, seed, strategy):
    options = KINDS.get(strategy) or {"capacity": 5000, "strategy": strategy}
    with BloomFilter("x", error_rate=1e-9, client=valkey, **options) as made:
        with ThreadPoolExecutor(THREADS) as pool:
            told = list(pool.map(offer, [made] * THREADS, range(seed, seed + THREADS)))
        assert Counter(item for one in told for item in one) == Counter(ITEMS)


def work(url, strategy, seed, start, results):
    """Offer all items, then add and discard some; report what was new, and the balance of each."""
    start.wait()
    if strategy == "asyncio":
        results.put((asyncio.run(offer_async(url, seed)), Counter()))
        return
    chance, balance = random.Random(seed), Counter()
    with BloomFilter.open("x", client=url, strategy=strategy) as made:
        won = offer(made, seed)
        for _ in range(60):
            some = chance.sample(DISCARDED, 2)
            if chance.random() < 0.5:
                answers = made.add_many(some)
                balance.update(item for item, new in zip(some, answers, strict=True) if new)
            else:
                answers = made.discard_many(some)
                balance.subtract(item for item, was in zip(some, answers, strict=True) if was)
    results.put((won, balance))


async def offer_async(url, seed):
    won = []
    async with await AsyncBloomFilter.open("x", client=url) as made:
        for batch in in_own_order(seed):
            answers = await asyncio.gather(*map(made.add, batch))
            won += [item for item, new in zip(batch, answers, strict=True) if new]
    return won


@pytest.mark.free_running
@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_add_and_discard_the_same_items(r, valkey, seed, kind):
    made = BloomFilter("x", error_rate=1e-9, client=valkey, **KINDS[kind])
    strategies = ["atomic", "lua" if kind == "plain" else "atomic", "asyncio"]
    start, results = FORKS.Barrier(len(strategies)), FORKS.Queue()
    workers = [
        FORKS.Process(target=work, args=(valkey, strategy, seed + number, start, results))
        for number, strategy in enumerate(strategies)
    ]
    for worker in workers:
        worker.start()
    reports = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert Counter(item for won, _ in reports for item in won) == Counter(ITEMS)
    balance = Counter()
    for _, some in reports:
        balance.update(some)
    # Times new, less times discarded: 1 if it is there.
    assert [balance[item] for item in DISCARDED] == made.exists_many(DISCARDED)
    made.close()
