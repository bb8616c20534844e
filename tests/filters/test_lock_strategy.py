"""What the lock strategy does when its lock, or the server, is not as it was."""

from __future__ import annotations

import time

import pytest
import redis
from proxy import Proxy

from bloomlock import BloomFilter, Lock, LockStrategy, LockTimeoutError

STRIPE = "bloomlock:{x}:lock:0"


@pytest.fixture
def proxy(server_url):
    with Proxy(server_url) as made:
        yield made


def filter_at(url, **options):
    return BloomFilter("x", 1000, client=url, strategy=LockStrategy(stripes=1, **options))


@pytest.mark.parametrize("forbidden", ["", "-@scripting"])
def test_an_update_that_exec_refused_is_done_again(client, server_url, forbidden):
    rules = ["+@all", *forbidden.split()]
    client.acl_setuser("some", enabled=True, nopass=True, keys="*", channels="*", commands=rules)
    with Proxy(server_url) as proxy:
        made = BloomFilter(
            "x",
            1000,
            client=redis.Redis.from_url(proxy.url, username="some", password="any"),  # noqa: S106
            strategy=LockStrategy(stripes=1),
        )
        stolen = []

        def judge(name, _number):
            # Between the look at the lock and the transaction that it guards.
            if name == "EXEC" and not stolen and client.get(STRIPE):
                stolen.append(client.delete(STRIPE))
            return "pass"

        proxy.judge = judge
        assert made.add_many(["a", "b"]) == [True, True]
        assert stolen == [1]
        assert made.exists_many(["a", "b", "c"]) == [True, True, False]
        assert made.add_many(["a", "b"]) == [False, False]
        assert not client.exists(STRIPE)
    client.acl_deluser("some")


def test_a_lock_that_is_lost_when_it_was_waited_for_is_asked_for_again(client, proxy):
    made = filter_at(proxy.url)
    lost = []

    def judge(name, _number):
        if name == "WATCH" and not lost and client.get(STRIPE) not in (None, b"other"):
            lost.append(client.delete(STRIPE))
        return "pass"

    client.set(STRIPE, "other", px=300)
    proxy.judge = judge
    assert made.add("a") is True
    assert lost == [1]
    assert made.exists("a")


def test_a_time_out_comes_when_the_time_is_over(client, server_url):
    made = filter_at(server_url, timeout=0.3)
    client.set(STRIPE, "other")
    start = time.monotonic()
    with pytest.raises(LockTimeoutError, match=r"no lock for an item within 0.3 s"):
        made.add("a")
    assert time.monotonic() - start >= 0.3
    assert not made.exists("a")


def test_a_server_that_may_not_be_written_to_says_so_at_once(client, server_url):
    made = filter_at(server_url, timeout=90.0)
    made.add("warm")
    client.replicaof("127.0.0.1", "1")
    try:
        start = time.monotonic()
        with pytest.raises(redis.RedisError, match="(?i)read.?only"):
            made.add("a")
        with pytest.raises(redis.RedisError, match="(?i)read.?only"):
            made.add_many(["a", "b"])
        assert time.monotonic() - start < 60
    finally:
        client.replicaof("NO", "ONE")
    assert made.add("a") is True


def test_a_lock_with_the_name_of_a_filter_keeps_its_fence(client):
    made = BloomFilter("x", 1000, client=client, strategy="lock", shards=2)
    lock = Lock("x", client)
    with lock:
        first = lock.fence
        assert made.add_many(map(str, range(20))) == [True] * 20
    assert int(client.get("bloomlock:{x}:lock:fence")) == first
    made.delete()
    assert client.keys("*") == [b"bloomlock:{x}:lock:fence"]
    with lock:
        assert lock.fence > first
