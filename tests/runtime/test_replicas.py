"""Reads from the replicas of a real cluster, and filters that go through a failover."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import redis
import redis.asyncio
import servers
from redis.cluster import ClusterNode, RedisCluster

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    Lock,
)

CAPACITY, RATE, SHARDS = 5000, 1e-9, 3
ITEMS = [f"item {number}" for number in range(300)]
READS = ("cmdstat_bitfield_ro", "cmdstat_getrange", "cmdstat_getbit")


@pytest.fixture(scope="module")
def nodes():
    """Three masters and their replicas."""
    with servers.replicated_cluster(2000) as both:
        yield both


@pytest.fixture
def cluster(nodes):
    masters, replicas = nodes
    for master in masters:
        master.flushall()
    for replica in replicas:
        servers.wait_until(lambda replica=replica: not replica.dbsize())
    with client_of(masters[0]) as made:
        yield made


def port_of(node):
    return node.connection_pool.connection_kwargs["port"]


def client_of(node):
    return RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port_of(node))])


def reads(some):
    """Return how many commands of tests some servers have answered."""
    stats = [node.info("commandstats") for node in some]
    return sum(each[name]["calls"] for each in stats for name in READS if name in each)


def replicated(nodes):
    """Wait until every replica has all that its master has."""
    for master in nodes[0]:
        assert master.execute_command("WAIT", 1, 20_000) == 1


def filters(cluster, strategy="atomic", **options):
    """Return a filter, and an object of it that reads from replicas."""
    made = BloomFilter("m", CAPACITY, RATE, client=cluster, shards=SHARDS, **options)
    how = {"client": cluster, "strategy": strategy, "read_from_replicas": True, **options}
    return made, BloomFilter.open("m", **how)


def add_all(made, nodes):
    assert made.add_many(ITEMS) == [True] * len(ITEMS)
    # WAIT speaks of what its own connection wrote, so each master writes something.
    for master in nodes[0]:
        slot_key = next(k for k in ("a", "b", "c", "d", "e", "f", "g", "h") if owns(master, k))
        master.set(slot_key, 1)
        assert master.execute_command("WAIT", 1, 20_000) == 1


def owns(master, key):
    try:
        master.get(key)
    except redis.ResponseError:
        return False
    return True


@pytest.mark.parametrize("strategy", ["atomic", "transaction", "pipeline", "lua", "lock"])
def test_replicas_answer_tests_and_nothing_else(nodes, cluster, strategy):
    masters, replicas = nodes
    made, reader = filters(cluster, strategy)
    add_all(made, nodes)
    before, of_masters = reads(replicas), reads(masters)
    for route in ("items",) if strategy == "lock" else ("items", "bitmap"):
        assert reader.exists_many([*ITEMS, "no"], route=route) == [True] * len(ITEMS) + [False]
    assert reader.exists(ITEMS[0])
    assert "no" not in reader
    if strategy != "lua":  # a script is not for replicas: they send it on to the master
        assert reads(replicas) > before
        assert reads(masters) == of_masters
    between = reads(replicas)
    assert reader.add("new")
    assert reader.add_many(["new", "newer"]) == [False, True]
    assert reads(replicas) == between, "adds ask the masters alone"


def test_replicas_in_asyncio(nodes, cluster):
    masters, replicas = nodes
    made, _ = filters(cluster)
    add_all(made, nodes)

    async def run():
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port_of(masters[1]))
        reader = await AsyncBloomFilter.open("m", client=client, read_from_replicas=True)
        before, of_masters = reads(replicas), reads(masters)
        assert all(await reader.exists_many(ITEMS))
        answers = await asyncio.gather(*(reader.exists(item) for item in [*ITEMS[:50], "no"]))
        assert answers == [True] * 50 + [False]
        assert reads(replicas) > before
        assert reads(masters) == of_masters
        assert await reader.add("new")
        await client.aclose()

    asyncio.run(run())


def test_what_replicas_that_are_behind_weaken(nodes, cluster):
    _, replicas = nodes
    made, reader = filters(cluster)
    add_all(made, nodes)
    servers.cut(replicas)
    try:
        assert made.add("late")
        assert reader.exists("late") is False, "a replica that is behind denies it"
        assert reader.add("late") is False, "an add asks the master"
        # A replica that has another generation, or none, does not answer for this one.
        young = BloomFilter("young", CAPACITY, RATE, client=cluster, read_from_replicas=True)
        assert young.add("a")
        assert young.exists("a")
        made.clear()
        assert reader.exists(ITEMS[0]) is True, "the clear of another is not seen yet"
        late = BloomFilter.open("m", client=cluster, read_from_replicas=True)
        assert late.exists_many(ITEMS) == [False] * len(ITEMS)
        assert made.add_many(ITEMS) == [True] * len(ITEMS)
        assert late.exists_many(ITEMS) == [True] * len(ITEMS)
        with pytest.raises(FilterLostError):
            reader.add("a")
    finally:
        servers.join(replicas)
    assert late.exists_many(ITEMS) == [True] * len(ITEMS)


def test_a_full_filter_asks_masters_before_it_refuses(nodes, cluster):
    _, replicas = nodes
    options = {"client": cluster, "shards": 1, "on_full": "raise", "read_from_replicas": True}
    made = BloomFilter("full", 100, RATE, **options)
    servers.cut(replicas)
    try:
        made.add_many([str(number) for number in range(100)])
        with pytest.raises(CapacityError):
            made.add_many([f"more {number}" for number in range(100)])
        assert made.add_many([str(number) for number in range(100)]) == [False] * 100
    finally:
        servers.join(replicas)


def test_a_single_server_has_no_replicas_to_read_from(r):
    with pytest.raises(ConfigurationError, match="read_from_replicas must be False for the cli"):
        BloomFilter("m", CAPACITY, client=r, read_from_replicas=True)
    with pytest.raises(ConfigurationError, match="read_from_replicas must be True or False, not"):
        BloomFilter("m", CAPACITY, client=r, read_from_replicas="yes")
    assert not r.keys()


def test_a_failover_is_gone_through(nodes, cluster):
    masters, replicas = nodes
    made, reader = filters(cluster)
    add_all(made, nodes)
    lost = cluster.get_node_from_key("bloomlock:{m}:bits").port
    index = [port_of(master) for master in masters].index(lost)
    os.kill(masters[index].info("server")["process_id"], signal.SIGKILL)
    servers.wait_until(lambda: replicas[index].info("replication")["role"] == "master")
    servers.wait_until(lambda: answers(made) and answers(reader))
    assert all(made.exists_many(ITEMS))
    assert all(reader.exists_many(ITEMS)), "one of the masters has no replica any more"
    assert made.add_many([*ITEMS, "after"]) == [False] * len(ITEMS) + [True]
    assert reader.add("after") is False
    with Lock("m", client=cluster) as lock:
        lock.check()
    with made.claim("claimed") as claim:
        assert claim
    made.clear()
    assert not any(made.exists_many(ITEMS))
    assert made.delete()


def answers(made):
    try:
        return all(made.exists_many(ITEMS))
    except redis.RedisError:
        return False
