"""What the lock strategy does when its lock, or the server, is not as it was."""

from __future__ import annotations

import pytest
import redis

from bloomlock import BloomFilter, Lock, LockStrategy
from bloomlock.errors import LockTimeoutError

STRIPE = "bloomlock:{x}:lock:0"


def filter_at(url, **options):
    return BloomFilter("x", 1000, client=url, strategy=LockStrategy(stripes=1, **options))


def test_an_update_whose_lock_is_lost_is_done_again(r, proxy):
    # The server has the scripts from now on.
    BloomFilter("y", 1000, client=r, strategy="lock").add("a")
    made = filter_at(proxy.url)
    stolen, bits_set = [], []

    def judge(name, _number):
        if stolen:
            bits_set.append(r.bitcount("bloomlock:{x}:bits", 24, -1))
        # Between the grant of the lock and the update that it guards.
        elif name.startswith("EVAL") and r.get(STRIPE):
            stolen.append(r.delete(STRIPE))
        return "pass"

    proxy.judge = judge
    assert made.add_many(["a", "b"]) == [True, True]
    assert stolen == [1]
    assert bits_set[0] == 0, "nothing is written without the lock"
    assert made.exists_many(["a", "b", "c"]) == [True, True, False]
    assert made.add_many(["a", "b"]) == [False, False]
    assert not r.exists(STRIPE)


def test_a_lock_that_is_lost_when_it_was_waited_for_is_asked_for_again(r, proxy):
    made = filter_at(proxy.url)
    lost = []

    def judge(name, _number):
        value = r.get(STRIPE)
        if value == b"other" and name == "SUBSCRIBE":
            # It waits now, and the other client goes.
            r.delete(STRIPE)
        if name.startswith("EVAL") and not lost and value not in (None, b"other"):
            lost.append(r.delete(STRIPE))
        return "pass"

    made.add("warm")
    r.set(STRIPE, "other", px=30_000)
    proxy.judge = judge
    assert made.add("a") is True
    assert lost == [1]
    assert made.exists("a")


def test_who_does_not_wait_is_told_that_another_has_the_lock(r, valkey):
    made = filter_at(valkey, timeout=0)
    r.set(STRIPE, "other")
    with pytest.raises(LockTimeoutError, match=r"no lock for an item within 0 s"):
        made.add("a")
    assert not made.exists("a")


def test_a_server_that_may_not_be_written_to_says_so_at_once(r, valkey):
    made = filter_at(valkey, timeout=90.0)
    made.add("warm")
    r.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(redis.RedisError, match="(?i)read.?only"):
            made.add("a")
        with pytest.raises(redis.RedisError, match="(?i)read.?only"):
            made.add_many(["a", "b"])
    finally:
        r.replicaof("NO", "ONE")
    assert made.add("a") is True


def test_a_lock_with_the_name_of_a_filter_keeps_its_fence(r):
    made = BloomFilter("x", 1000, client=r, strategy="lock", shards=2)
    lock = Lock("x", r)
    with lock:
        first = lock.fence
        assert made.add_many(map(str, range(20))) == [True] * 20
    assert int(r.get("bloomlock:{x}:lock:fence")) == first
    made.delete()
    assert r.keys("*") == [b"bloomlock:{x}:lock:fence"]
    with lock:
        assert lock.fence > first
