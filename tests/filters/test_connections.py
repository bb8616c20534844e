"""A filter takes little of its client's pool, and gives back what it took."""

from __future__ import annotations

import gc

import pytest
import redis

from bloomlock import BloomFilter


@pytest.fixture
def pooled(valkey):
    with redis.Redis.from_url(valkey, max_connections=20) as made:
        made.flushall()
        yield made


def in_use(client):
    return len(client.connection_pool._in_use_connections)


def test_many_filters_over_one_client_share_one_idle_connection(pooled):
    made = [BloomFilter(f"f {number}", 100, client=pooled) for number in range(100)]
    for number, one in enumerate(made):
        assert one.add(str(number))
    assert in_use(pooled) == 1


def test_filters_that_are_forgotten_give_their_connection_back(pooled):
    for number in range(50):
        assert BloomFilter("x", 1000, client=pooled).add(str(number))
        gc.collect()
        assert in_use(pooled) == 0
    made = BloomFilter("x", 1000, client=pooled)
    made.add("a")
    made.close()
    assert in_use(pooled) == 0
    assert made.add("works still")


@pytest.mark.parametrize("kind", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_pool_of_one_connection_is_enough(valkey, kind):
    client = redis.Redis(connection_pool=kind.from_url(valkey, max_connections=1))
    client.flushall()
    for strategy in ("atomic", "lua", "transaction", "pipeline", "lock"):
        made = BloomFilter("x", 1000, client=client, strategy=strategy)
        assert made.add(strategy)
        assert made.exists(strategy)
        assert client.ping()
        made.clear()
