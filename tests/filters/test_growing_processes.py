"""Several real processes add to one filter while it grows: exact counts of winners."""

from __future__ import annotations

import random
import threading

import pytest
import redis
from processes import FORKS

from bloomlock import BloomFilter
from bloomlock.descriptor import slices_of
from bloomlock.keys import FilterKeys

pytestmark = pytest.mark.processes
WORKERS, SHARDS = 4, 3
CAPACITY, ITEMS = 200, 6000
ERROR_RATE = 1e-9
PATIENCE = 500


def offer(url, seed, number, barrier, results):
    """Offer all items in an order of one's own, some one by one, some in batches."""
    rng = random.Random(f"{seed}/{number}")
    order = [f"item {one}" for one in range(ITEMS)]
    rng.shuffle(order)
    made = BloomFilter.open("race", client=url)
    barrier.wait(PATIENCE)
    won, denied = [], 0
    while order:
        size = rng.choice((1, 1, 7, 150))
        batch, order = order[:size], order[size:]
        told = [made.add(batch[0])] if size == 1 else made.add_many(batch)
        won += [item for item, new in zip(batch, told, strict=True) if new]
        denied += made.exists_many(batch).count(False)
    results.put((won, denied))


def test_one_wins_each_item_and_none_is_denied_while_the_filter_grows(valkey, seed):
    client = redis.Redis.from_url(valkey)
    client.flushall()
    options = {"client": valkey, "on_full": "grow", "shards": SHARDS, "up_to": 50 * CAPACITY}
    made = BloomFilter("race", CAPACITY, ERROR_RATE, **options)
    barrier, results = FORKS.Barrier(WORKERS), FORKS.Queue()
    workers = [
        FORKS.Process(target=offer, args=(valkey, seed, number, barrier, results))
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=PATIENCE) for _ in workers]
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    won = [item for mine, _ in answers for item in mine]
    assert sorted(won) == sorted(f"item {one}" for one in range(ITEMS))
    assert [denied for _, denied in answers] == [0] * WORKERS
    keys = FilterKeys("race").spread(SHARDS)
    found = [
        slices_of(int.from_bytes(client.getrange(keys.bits(n), 0, 7), "big")) for n in range(SHARDS)
    ]
    assert found == [4, 4, 4]
    assert made.info().current_error_rate <= ERROR_RATE


def test_threads_that_share_one_object_which_grows(r, seed):
    made = BloomFilter("x", 100, ERROR_RATE, client=r, on_full="grow", up_to=10_000)
    items = [f"item {one}" for one in range(1500)]
    wins: list[list[str]] = [[] for _ in range(4)]

    def offer_all(mine, order):
        for item in order:
            if made.add(item):
                mine.append(item)
            assert made.exists(item)

    threads = [
        threading.Thread(
            target=offer_all, args=(mine, random.Random(seed + n).sample(items, len(items)))
        )
        for n, mine in enumerate(wins)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(item for mine in wins for item in mine) == sorted(items)
    assert all(made.exists_many(items))
    assert made.info().slices == 3
