"""Several real processes add, discard and ask for the same items: exact counts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from processes import FORKS

from bloomlock import AsyncBloomFilter, BloomFilter

pytestmark = pytest.mark.processes
PATIENCE = 500
STRATEGIES = ("atomic", "lua", "transaction", "asyncio")
KINDS = {
    "plain": {"capacity": 5000},
    "growing": {"capacity": 20, "on_full": "grow"},
    "window": {"capacity": 50_000, "window": 600, "slices": 6},
    "renewing": {"capacity": 50_000, "window": 3000, "slices": 30, "refresh": True},
}
ITEMS = [f"item {number}" for number in range(12)]
ROUNDS = 250


def work(url, strategy, kind, seed, barrier, results):
    """Do what comes by chance; report the balance of each item: times new, less times forgotten."""
    rng, balance = random.Random(seed), Counter()
    barrier.wait(PATIENCE)
    if strategy == "asyncio":
        asyncio.run(work_async(url, kind, rng, balance))
        results.put(balance)
        return
    if kind != "plain":
        strategy = "atomic"
    renews = kind == "renewing"
    with BloomFilter.open("race", client=url, strategy=strategy, refresh=renews) as made:
        for round_ in range(ROUNDS):
            if kind == "growing":
                # So that it goes on growing.
                made.add_many([f"{seed} {round_} {number}" for number in range(5)])
            some = rng.sample(ITEMS, rng.choice([1, 3]))
            if rng.random() < 0.5:
                balance.update(item for item in some if made.add(item))
            elif rng.random() < 0.5:
                answers = made.discard_many(some)
                balance.subtract(item for item, gone in zip(some, answers, strict=True) if gone)
            else:
                answers = made.add_many(some)
                balance.update(item for item, new in zip(some, answers, strict=True) if new)
    results.put(balance)


async def work_async(url, kind, rng, balance):
    async with AsyncBloomFilter("race", error_rate=1e-9, client=url, **KINDS[kind]) as made:
        for _ in range(ROUNDS // 5):
            adds, gone = rng.sample(ITEMS, 4), rng.sample(ITEMS, 3)
            answers = await asyncio.gather(*map(made.add, adds), *map(made.discard, gone))
            balance.update(item for item, new in zip(adds, answers[:4], strict=True) if new)
            balance.subtract(item for item, was in zip(gone, answers[4:], strict=True) if was)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_new_less_what_was_forgotten_is_what_is_there(valkey, r, kind, seed):
    made = BloomFilter("race", error_rate=1e-9, client=r, **KINDS[kind])
    made.update(["another", "and one more"])
    barrier, results = FORKS.Barrier(len(STRATEGIES)), FORKS.Queue()
    workers = [
        FORKS.Process(target=work, args=(valkey, strategy, kind, seed + number, barrier, results))
        for number, strategy in enumerate(STRATEGIES)
    ]
    for worker in workers:
        worker.start()
    balance = Counter()
    for _ in workers:
        balance.update(results.get(timeout=PATIENCE))
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    there = dict(zip(ITEMS, made.exists_many(ITEMS), strict=True))
    assert {item: balance[item] for item in ITEMS} == there
    assert made.exists_many(["another", "and one more", "never"]) == [True, True, False]
    assert made.info().forgotten > ROUNDS / 4
    assert made.info().slices > 3 or kind != "growing"
