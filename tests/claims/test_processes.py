"""Workers in processes of their own, two of them killed, and replies get lost: exact counts."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict

import pytest
import redis
from claim_tools import let_expire
from processes import FORKS
from proxy import Proxy
from servers import wait_until

from bloomlock import BloomFilter, ClaimState, once
from bloomlock.errors import ClaimError, ClaimLostError, InProgress, OutcomeUnknownError

WORKERS, KILLED = 4, 2
ITEMS = [f"https://example.org/{number}" for number in range(300)]
ORDERS = [f"order {number}" for number in range(60)]
LEASE = 3600.0
"""No lease ends by itself; they all do when a worker was killed."""
PATIENCE = 500.0

# What is worked on: it takes no work of an older fence, and writes down what it took.
RESOURCE = """
local last = redis.call('HGET', KEYS[1], ARGV[1])
if last and tonumber(last) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
return 1
"""


class Worker:
    """Claims, works and commits; what goes wrong is left to others, or to the next time."""

    def __init__(self, url, lossy_url, seed):
        self.order = random.Random(seed)
        self.direct = redis.Redis.from_url(url)
        self.resource = self.direct.register_script(RESOURCE)
        self.pages = BloomFilter("pages", 50_000, 1e-9, client=lossy_url, shards=3)
        self.charged = BloomFilter("charged", 1000, 1e-9, client=lossy_url)

        @once(self.charged, key="order", ttl=LEASE)
        def charge(order):
            self.direct.rpush("begun", order)
            return True

        self.charge = charge

    def do(self, claim):
        """Work on an item if it is this worker's; True if it was done before."""
        line = f"{claim.item} {claim.fence}"
        try:
            with claim:
                if not claim:
                    return claim.state is ClaimState.SEEN
                self.resource(keys=["fences", "worked"], args=[claim.item, claim.fence])
            self.direct.rpush("committed", line)
        except (ClaimError, OutcomeUnknownError, redis.RedisError):
            pass
        return False

    def do_many(self, items):
        """Return the items that are not known to be done."""
        try:
            made = self.pages.claim_many(items, ttl=LEASE)
            for claim in self.pages.expired(ttl=LEASE):
                self.do(claim)
        except redis.RedisError:
            return items
        return [claim.item for claim in made if not self.do(claim)]

    def do_orders(self, orders):
        left = []
        for order in orders:
            try:
                if self.charge(order):
                    self.direct.rpush("charged", order)
            except (InProgress, ClaimLostError, OutcomeUnknownError, redis.RedisError):
                left.append(order)
        return left


def work_until_stopped(url, lossy_url, seed):
    worker, items, orders = Worker(url, lossy_url, seed), ITEMS[:], ORDERS[:]
    while not worker.direct.exists("stop"):
        for left in (items, orders):
            worker.order.shuffle(left)
        parts = [items[start : start + 20] for start in range(0, len(items), 20)]
        items = [item for part in parts for item in worker.do_many(part)]
        orders = worker.do_orders(orders)


def lose(name, number):
    return "after" if name.startswith("EVAL") and number % 37 == 0 else "pass"


@pytest.mark.processes
@pytest.mark.free_running
def test_killed_and_cut_off(r, valkey, seed):
    pages = BloomFilter("pages", 50_000, 1e-9, client=valkey, shards=3)
    charged = BloomFilter("charged", 1000, 1e-9, client=valkey)
    with Proxy(valkey, lose, handshake=False) as proxy:
        # Nothing of a process that is killed is under way in the proxy.
        urls = [valkey] * KILLED + [proxy.url] * (WORKERS - KILLED)
        team = [
            FORKS.Process(target=work_until_stopped, args=(valkey, url, seed + number))
            for number, url in enumerate(urls)
        ]
        for worker in team:
            worker.start()
        for number, worker in enumerate(team[:KILLED], 1):
            wait_until(lambda n=number: r.llen("worked") > 40 * n, PATIENCE)
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            r.ping()  # by now the server has read all that the worker sent
            let_expire(r)
        wait_until(lambda: all(pages.exists_many(ITEMS)), PATIENCE, "all items in the filter")
        wait_until(lambda: all(charged.exists_many(ORDERS)), PATIENCE, "all orders in the filter")
        r.set("stop", 1)
        for worker in team:
            worker.join(PATIENCE)
        assert [worker.exitcode for worker in team] == [-signal.SIGKILL] * KILLED + [0, 0]
        assert proxy.cuts["after"]
    judge(r)
    for found in (pages, charged):
        let_expire(r)
        assert not list(found.expired())
        counts = found.count_claims()
        ended = counts.committed + counts.abandoned + counts.failed + counts.expired
        assert (counts.claimed, counts.open) == (ended, 0), "each claim ended once"
        assert counts.committed == len(ITEMS if found is pages else ORDERS)


def judge(r):
    fences = defaultdict(list)
    for line in r.lrange("worked", 0, -1):
        item, fence = line.split()
        fences[item].append(int(fence))
    assert len(fences) == len(ITEMS), "each was worked on"
    for item, seen in fences.items():
        assert seen == sorted(set(seen)), f"two claims of {item} with one fence, or a falling one"
    committed = [line.split() for line in r.lrange("committed", 0, -1)]
    assert max(Counter(item for item, _ in committed).values()) == 1
    for item, fence in committed:
        assert int(fence) == fences[item][-1], "what was committed was worked on last"
    assert set(r.lrange("begun", 0, -1)) == {order.encode() for order in ORDERS}
    assert max(Counter(r.lrange("charged", 0, -1)).values()) == 1
