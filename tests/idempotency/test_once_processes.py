"""`@once` in several processes, one of them killed in the middle: each effect once, counted."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import pytest
import redis
from processes import FORKS
from servers import wait_until

from bloomlock import BloomFilter, InProgress, once

pytestmark = pytest.mark.processes
NUM_ORDERS = 60
PATIENCE = 500


def work(url, seed, number):
    direct = redis.Redis.from_url(url)

    # Made at the first call, as in a program whose modules are imported before it forks.
    @once(lambda: filters[0], key="order.id", ttl=2)
    def charge(order):
        if order["id"] == "stuck" and direct.set("stuck", os.getpid(), nx=True):
            signal.pause()
        direct.rpush("effects", order["id"])
        return number

    filters = [BloomFilter("charged", 1000, client=url)]
    orders = [{"id": f"order {each}"} for each in range(NUM_ORDERS)] + [{"id": "stuck"}]
    random.Random(seed + number).shuffle(orders)
    while orders:
        order = orders.pop()
        try:
            charge(order)
        except InProgress:
            orders.insert(0, order)


def test_killed_in_the_middle(r, valkey, seed):
    workers = [FORKS.Process(target=work, args=(valkey, seed, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    wait_until(lambda: r.get("stuck"))
    os.kill(int(r.get("stuck")), signal.SIGKILL)
    for worker in workers:
        worker.join(PATIENCE)
    assert sorted(worker.exitcode for worker in workers) == [-signal.SIGKILL, 0, 0]
    effects = Counter(r.lrange("effects", 0, -1))
    assert set(effects.values()) == {1}
    assert len(effects) == NUM_ORDERS + 1
    with BloomFilter("charged", 1000, client=valkey) as charged:
        counts = charged.info().claims
    assert (counts.committed, counts.expired, counts.open) == (NUM_ORDERS + 1, 1, 0)
