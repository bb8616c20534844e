"""A filter that is larger than the memory it may have is refused before anything of it is there."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
import redis

from bloomlock import AsyncBloomFilter, BloomFilter, ConfigurationError
from bloomlock.runtime import clients
from bloomlock.server import PrivateServer

MIB = 2**20
TOO_LARGE = (
    r"capacity is 10000000 at error_rate 1e-06: filter '{}' takes {} of memory and its server has "
    r"\d+\.\d MiB free \({}\); give a smaller capacity, a larger error_rate or another server"
)
EVICTED = (
    "filter 'f' may be evicted, and with it all that it has seen: its server's maxmemory-policy is "
    "allkeys-lru; use noeviction"
)


@pytest.fixture(params=["valkey", "redis7"])
def small(request):
    """A server that may have 20 MiB, and a client of it."""
    import servers  # noqa: PLC0415 - shared by all tests, needed here alone

    binary = servers.require_server(request.param)
    with (
        PrivateServer(binary=binary, config={"maxmemory": 20 * MIB}) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        yield client


def create(client, capacity=10_000_000, name="f", **options):
    return BloomFilter(name, capacity, 1e-6, client=client, num_hashes=16, **options)


@pytest.mark.parametrize("shards", [1, 7])
@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_what_exceeds_maxmemory_is_refused(small, shards, layout):
    expected = TOO_LARGE.format("f", r"\d\d\.\d MiB", r"maxmemory is 20\.0 MiB")
    with pytest.raises(ConfigurationError, match=expected):
        create(small, shards=shards, layout=layout)
    assert small.keys() == []
    with create(small, 1_000_000, shards=shards, layout=layout) as made:
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
        # Valkey flushes behind the answer unless it is asked to wait.
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
    with caplog.at_level(logging.WARNING):
        create(small, 3_000_000, shards=1).close()
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ([EVICTED] if policy == "allkeys-lru" else [])
    with pytest.raises(ConfigurationError, match="filter 'g' takes .* 20.0 MiB free"):
        create(small, name="g")


def test_the_memory_of_this_machine_bounds_a_server_on_it(valkey, tmp_path, monkeypatch):
    report = tmp_path / "meminfo"
    report.write_text("MemTotal:  9999999 kB\nMemAvailable:   20480 kB\nBuffers:  1 kB\n")
    monkeypatch.setattr(clients, "MEMORY_REPORT", report)
    expected = TOO_LARGE.format(
        "large", r"\d\d\.\d MiB", "the rest of this machine's memory is in use"
    )
    with pytest.raises(ConfigurationError, match=expected):
        create(valkey, name="large")
    report.write_text("a system that reports something else")
    with create(valkey, name="large") as made:
        made.delete()


def test_the_memory_of_the_servers_machine_bounds_it(valkey, monkeypatch, tmp_path):
    monkeypatch.setattr(clients, "MEMORY_REPORT", tmp_path / "none")
    with redis.Redis.from_url(valkey) as client:
        total = client.info("memory")["total_system_memory"]
        used = client.info("memory")["used_memory"]
        if total > 2**35:
            pytest.skip("no filter is larger than this machine's memory")
        with pytest.raises(ConfigurationError, match=r"its machine has \d+\.\d GiB"):
            create(client, total, "huge")
        assert client.info("memory")["used_memory"] - used < 10 * MIB


@pytest.mark.parametrize(
    "rule", ["-info", "-@all +@write +@read +@connection +@transaction +@scripting"]
)
def test_where_info_is_forbidden_filters_are_created(valkey, rule):
    with redis.Redis.from_url(valkey) as admin:
        admin.execute_command(
            "ACL", "SETUSER", "less", "on", "nopass", "~*", "&*", "+@all", *rule.split()
        )
        with redis.Redis.from_url(valkey, username="less", password="any") as client:  # noqa: S106
            for shards in (1, 3):
                with create(client, 1000, f"less-{shards}", shards=shards) as made:
                    assert made.add("a")
                    made.delete()
        admin.acl_deluser("less")


def test_attaching_asks_nothing_more(valkey):
    with redis.Redis.from_url(valkey) as client, create(client, 1000, "known"):
        client.config_resetstat()
        with create(client, 1000, "known"), BloomFilter.open("known", client=client):
            pass
        commands = {re.sub("^cmdstat_", "", name) for name in client.info("commandstats")}
        assert not commands & {"info"}
        client.delete("bloomlock:{known}:meta", "bloomlock:{known}:bits")
