"""A filter that is larger than the memory it may have is refused before anything of it is there."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis
from private import PrivateServer
from servers import wait_until

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.errors import ConfigurationError

MIB = 2**20
TOO_LARGE = (
    r"capacity is 10000000 at error_rate 1e-06: filter '{}' takes {} of memory and its server has "
    r"\d+\.\d MiB free \({}\); give a smaller capacity, a larger error_rate or another server"
)
EVICTED = (
    "filter 'f' may be evicted, and with it all that it has seen: its server's maxmemory-policy is "
    "allkeys-lru; use noeviction"
)


@pytest.fixture(scope="module")
def server():
    with PrivateServer(config={"maxmemory": 20 * MIB}) as made:
        yield made


@pytest.fixture
def small(server):
    with redis.Redis.from_url(server.url) as client:
        # Valkey flushes behind the answer unless it is asked to wait.
        client.execute_command("FLUSHALL", "SYNC")
        client.config_set("maxmemory", 20 * MIB)
        client.config_set("maxmemory-policy", "noeviction")
        yield client


def create(client, capacity=10_000_000, name="f", **options):
    return BloomFilter(name, capacity, 1e-6, client=client, num_hashes=16, **options)


@pytest.mark.parametrize("shards", [1, 7])
def test_what_exceeds_maxmemory_is_refused(small, shards):
    expected = TOO_LARGE.format("f", r"\d\d\.\d MiB", r"maxmemory is 20\.0 MiB")
    with pytest.raises(ConfigurationError, match=expected):
        create(small, shards=shards)
    assert small.keys() == []
    with create(small, 1_000_000, shards=shards) as made:
        assert made.add("a")


def test_every_way_of_creating_is_refused(small):
    url = "unix://" + small.connection_pool.connection_kwargs["path"]

    async def create_awaited():
        async with AsyncBloomFilter("f", 10_000_000, 1e-6, client=url) as made:
            await made.add("a")

    with pytest.raises(ConfigurationError, match=r"its server has 1\d\.\d MiB free"):
        asyncio.run(create_awaited())
    with create(small, 3_500_000, "first") as first:
        with pytest.raises(ConfigurationError, match="filter 'second' takes 1"):
            first.copy("second")
        with pytest.raises(ConfigurationError, match="filter 'second' takes 1"):
            create(small, 3_500_000, "second")
        assert {key.split(b":")[1][:6] for key in small.scan_iter()} == {b"{first"}
        # The old bits go when the new ones come.
        first.clear()
        assert first.add("a")
    with create(small, 3_500_000, "first", on_lost="recreate") as again:
        assert small.delete("bloomlock:{first}:meta")
        again.reattach()
        assert again.add("a")
        small.execute_command("FLUSHALL", "SYNC")
        small.config_set("maxmemory", "10mb")
        with pytest.raises(ConfigurationError, match="filter 'first' takes 1"):
            again.add("a")
    assert not small.exists("bloomlock:{first}:meta")


def test_what_is_accepted_leaves_the_server_usable(small):
    free = small.info("memory")["maxmemory"] - small.info("memory")["used_memory"]
    capacity = 100 * (free // 400)
    while True:
        try:
            made = create(small, capacity)
        except ConfigurationError:
            capacity = int(capacity * 0.97)
        else:
            break
    with made:
        assert 0.7 * free < made.info().memory_bytes < free
        assert made.add("a")
        assert small.set("something", "else")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
def test_where_other_keys_give_way_only_the_limit_counts(small, policy, caplog):
    small.config_set("maxmemory-policy", policy)
    for number in range(14):
        small.set(str(number), bytes(MIB), ex=1000)
    # They give way first, as they are the oldest of all keys.
    small.config_set("maxmemory-samples", 64)
    wait_until(lambda: small.object("idletime", "13") >= 2)
    with caplog.at_level(logging.WARNING):
        create(small, 3_000_000, shards=1).close()
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ([EVICTED] if policy == "allkeys-lru" else [])
    with pytest.raises(ConfigurationError, match="filter 'g' takes .* 20.0 MiB free"):
        create(small, name="g")


@pytest.mark.parametrize(
    "rule", ["-info", "-@all +@write +@read +@connection +@transaction +@scripting"]
)
def test_where_info_is_forbidden_filters_are_created(restricted, rule):
    client = restricted(*rule.split())
    for shards in (1, 3):
        with create(client, 1000, f"less-{shards}", shards=shards) as made:
            assert made.add("a")
            made.delete()
