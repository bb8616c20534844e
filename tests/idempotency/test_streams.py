"""Redis Streams: messages sent twice and delivered again, a worker killed: each effect once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial

import pytest
import redis
from processes import FORKS
from servers import wait_until

from bloomlock import ACK, BloomFilter, consume

pytestmark = pytest.mark.processes
NUM_ORDERS = 40
PATIENCE = 500


def take_effect(direct, order):
    if order == b"stuck" and direct.set("stuck", os.getpid(), nx=True):
        signal.pause()
    direct.rpush("effects", order)


def work(url, name):
    direct, done = redis.Redis.from_url(url), BloomFilter("done", 1000, client=url)
    while not direct.exists("stop"):
        # What another worker did not acknowledge, and then what no worker was given.
        _, messages, *_ = direct.xautoclaim("orders", "workers", name, min_idle_time=300, count=10)
        for _, fresh in direct.xreadgroup("workers", name, {"orders": ">"}, count=10) or ():
            messages += fresh
        for message_id, fields in messages:
            order = fields[b"order"]
            found = consume(done, order, partial(take_effect, direct, order), ttl=2)
            if found.action is ACK:
                direct.xack("orders", "workers", message_id)


def test_a_worker_is_killed_in_the_middle(r, valkey):
    r.xgroup_create("orders", "workers", id="0", mkstream=True)
    for order in 2 * [*(f"order {number}" for number in range(NUM_ORDERS)), "stuck"]:
        r.xadd("orders", {"order": order})
    workers = [FORKS.Process(target=work, args=(valkey, f"worker {n}")) for n in range(3)]
    for worker in workers:
        worker.start()
    wait_until(lambda: r.get("stuck"))
    os.kill(int(r.get("stuck")), signal.SIGKILL)
    group = lambda: r.xinfo_groups("orders")[0]  # noqa: E731
    wait_until(lambda: r.llen("effects") > NUM_ORDERS and not group()["pending"], PATIENCE)
    r.set("stop", 1)
    for worker in workers:
        worker.join(PATIENCE)
    assert sorted(worker.exitcode for worker in workers) == [-signal.SIGKILL, 0, 0]
    assert group()["entries-read"] == 2 * (NUM_ORDERS + 1)
    effects = Counter(r.lrange("effects", 0, -1))
    assert len(effects) == NUM_ORDERS + 1
    assert set(effects.values()) == {1}
    with BloomFilter("done", 1000, client=valkey) as done:
        counts = done.info().claims
    assert (counts.committed, counts.expired, counts.open) == (NUM_ORDERS + 1, 1, 0)
