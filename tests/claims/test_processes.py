"""Workers in processes of their own, killed, stopped, and cut off from the server: exact counts."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict

import pytest
import redis
from processes import FORKS
from proxy import Proxy
from servers import require_server, wait_until

from bloomlock import BloomFilter, ClaimError, ClaimState
from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes
TTL = 1.0
PATIENCE = 500
"""Seconds that the workers may take on a machine that has other work."""

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
        self.rng = random.Random(seed)
        self.direct = redis.Redis.from_url(url)
        self.resource = self.direct.register_script(RESOURCE)
        self.pages = BloomFilter("pages", 50_000, 1e-9, client=lossy_url, shards=3)

    def work(self, claim):
        time.sleep(self.rng.random() * 0.004)
        if self.rng.random() < 0.02:
            raise ValueError("an item that fails now and then")
        if not self.resource(keys=["fences", "worked"], args=[claim.item, claim.fence]):
            self.direct.rpush("refused", claim.item)
        time.sleep(self.rng.random() * 0.004)

    def do(self, claim):
        """Work on an item if it is this worker's; True if it was done before."""
        line = f"{claim.item} {claim.fence}"
        try:
            with claim:
                if not claim:
                    return claim.state is ClaimState.SEEN
                self.work(claim)
            self.direct.rpush("committed", line)
        except ClaimError:
            self.direct.rpush("lost", line)
        except (redis.RedisError, ValueError):
            self.direct.rpush("failed", line)
        return False

    def do_many(self, items):
        """Return the items that are not known to be done."""
        try:
            made = self.pages.claim_many(items, ttl=TTL)
        except redis.RedisError:
            return items
        return [claim.item for claim in made if not self.do(claim)]

    def do_expired(self):
        try:
            for claim in self.pages.expired(ttl=TTL):
                self.do(claim)
        except redis.RedisError:
            self.direct.incr("cut off")


def work_until_stopped(url, lossy_url, items, seed):
    worker, left = Worker(url, lossy_url, seed), list(items)
    while not worker.direct.exists("stop"):
        worker.rng.shuffle(left)
        parts = [left[start : start + 20] for start in range(0, len(left), 20)]
        left = [item for part in parts for item in worker.do_many(part)]
        worker.do_expired()
        time.sleep(0.01)


class Workers:
    """Processes that are started again when they were killed."""

    def __init__(self, count, arguments, seed):
        self.arguments, self.seed = arguments, seed
        self.running = [self.start(number) for number in range(count)]
        self.started = count

    def start(self, number):
        process = FORKS.Process(
            target=work_until_stopped, args=(*self.arguments, self.seed + number)
        )
        process.start()
        return process

    def kill(self, index):
        os.kill(self.running[index].pid, signal.SIGKILL)
        self.running[index].join()
        self.running[index] = self.start(self.started)
        self.started += 1


def run(url, seed, *, workers, count, kills, pause):
    rng = random.Random(seed)
    items = [f"https://example.org/{number}" for number in range(count)]
    direct = redis.Redis.from_url(url)
    direct.flushall()
    pages = BloomFilter("pages", 50_000, 1e-9, client=url, shards=3)

    def lose(name, _number):
        return "after" if name.startswith("EVAL") and rng.random() < 0.02 else "pass"

    with Proxy(url, lose) as proxy:
        team = Workers(workers, (url, proxy.url, items), seed)
        for turn in range(kills):
            before = direct.llen("worked")
            wait_until(lambda n=before: direct.llen("worked") > n + 5 or is_done(pages, items))
            time.sleep(pause * rng.random())
            if turn % 2:
                team.kill(rng.randrange(workers))
            else:
                sleeper = team.running[rng.randrange(workers)].pid
                os.kill(sleeper, signal.SIGSTOP)
                time.sleep(1.5 * TTL)
                os.kill(sleeper, signal.SIGCONT)
        wait_until(lambda: is_done(pages, items), PATIENCE, "all items in the filter")
        direct.set("stop", 1)
        for worker in team.running:
            worker.join(PATIENCE)
            assert worker.exitcode == 0
        print(f"{proxy.cuts['after']} replies lost, {kills} killed or stopped")
    check(direct, pages, items)


def is_done(pages, items):
    return all(pages.exists_many(items))


def check(direct, pages, items):
    assert pages.count() == pytest.approx(len(items), rel=0.01), "nothing else was committed"
    # What a worker had when it was killed is over after a lease, and was done by another.
    wait_until(lambda: not list(pages.expired()) and not pages.info().claims.open)
    counts = pages.info().claims
    print(counts)
    ended = counts.committed + counts.abandoned + counts.failed + counts.expired
    assert counts.claimed == ended, "each claim ended once"
    worked = [line.split() for line in direct.lrange("worked", 0, -1)]
    fences = defaultdict(list)
    for item, fence in worked:
        fences[item].append(int(fence))
    assert len(fences) == len(items), "each was worked on"
    for item, seen in fences.items():
        assert seen == sorted(set(seen)), f"two claims of {item} with one fence, or a falling one"
    committed = Counter(line.split()[0] for line in direct.lrange("committed", 0, -1))
    assert set(committed.values()) <= {1}, "two claims of one item were committed"
    # The claim that was committed is the last one that there was.
    for line in direct.lrange("committed", 0, -1):
        item, fence = line.split()
        assert int(fence) == fences[item][-1]
    again = sum(len(seen) > 1 for seen in fences.values())
    refused, lost = direct.llen("refused"), direct.llen("lost")
    print(f"{again} of {len(items)} items were worked on more than once")
    print(f"{refused} times an old fence was refused, {lost} commits were")


def test_killed_stopped_and_cut_off(valkey, seed):
    run(valkey, seed, workers=3, count=600, kills=6, pause=0.3)


@pytest.mark.long
def test_killed_every_two_seconds(valkey, seed):
    run(valkey, seed, workers=8, count=20_000, kills=40, pause=2)


def test_the_server_restarts(tmp_path):
    """What was claimed is claimed still, and what was committed is in the filter."""
    config = {"appendonly": True, "appendfsync": "always"}
    with (
        PrivateServer(binary=require_server("valkey"), config=config) as server,
        BloomFilter("pages", 1000, client=server.url) as mine,
    ):
        held, left = mine.claim_many(["held", "left"], ttl=600)
        mine.claim("done").commit()
        fence = held.fence
        server.kill()
        server.start()
        assert [claim.state for claim in mine.claim_many(["done", "held", "left"])] == [
            ClaimState.SEEN,
            ClaimState.BUSY,
            ClaimState.BUSY,
        ]
        held.commit()
        left.abandon()
        again = mine.claim("left")
        assert again.state is ClaimState.NEW
        assert again.fence > fence
        assert mine.exists("held")
