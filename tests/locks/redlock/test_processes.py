"""Several processes over several servers, one of which dies meanwhile: nothing is lost."""

from __future__ import annotations

import multiprocessing
import random

import pytest
import redis
from processes import FORKS
from servers import wait_until
from several import LONG

from bloomlock import Redlock

PROCESSES = 3
TURNS = 15
LEASE = 60


def work(urls, counter_url, seed):
    random.seed(seed)
    counter = redis.Redis.from_url(counter_url)
    lock = Redlock(
        "job", clients=urls, ttl=LEASE, longest_ttl=0, server_timeout=5, pauses=(0.001, 0.02)
    )
    for _ in range(TURNS):
        with lock:
            seen = int(counter.get("count") or 0)
            counter.set("count", seen + 1)


@pytest.mark.processes
@pytest.mark.parametrize("dead", [[], [1, 3]])
def test_each_turn_counts(five, valkey, dead, seed):
    counter = redis.Redis.from_url(valkey)
    counter.delete("count")
    workers = [
        FORKS.Process(target=work, args=(five.urls, valkey, seed + number))
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    try:
        for index in dead:
            five.servers[index].kill()
        for worker in workers:
            worker.join(LONG)
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    assert int(counter.get("count")) == PROCESSES * TURNS
    # A request that a busy server answers too late may leave a token there for a lease.
    wait_until(lambda: five.held(Redlock("job", clients=five.urls).key) == 0, LONG + LEASE)


def test_a_child_of_fork_holds_nothing(three):
    lock = three.lock(ttl=5)
    lock.acquire()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def look():
        answers.put([lock.token is None, lock.acquire(blocking=False), lock.owned()])

    child = context.Process(target=look)
    child.start()
    child.join(LONG)
    assert answers.get() == [True, False, False]
    assert lock.owned()
    lock.release()
