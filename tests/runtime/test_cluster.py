"""A filter over a real cluster of three servers, and over a real Sentinel."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import redis
import redis.asyncio
import servers
from private import PrivateServer
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel
from strategies import STRATEGIES, maker_of
from turns import Turns, counting

import bloomlock
from bloomlock import AsyncBloomFilter, BloomFilter, Lock
from bloomlock.errors import ConfigurationError, FilterLostError, OutcomeUnknownError


def routes(strategy):
    return ("items", "bitmap") if strategy in ("atomic", "lua") else ("items",)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_filter_spreads_over_the_cluster(cluster, nodes, strategy, tmp_path):
    made = BloomFilter("pages", 5000, 1e-9, client=cluster, strategy=strategy, shards=5)
    items = [str(number) for number in range(1500)]
    assert made.add_many(items) == [True] * 1500
    assert made.add("0") is False
    assert made.add("new") is True
    opened = BloomFilter.open("pages", client=cluster, strategy=maker_of(strategy))
    for route in routes(strategy):
        assert opened.exists_many(["no", *items], route=route) == [False] + [True] * 1500
        more = [f"{route} {number}" for number in range(500)]
        assert made.add_many([*more, *items, *more], route=route) == [True] * 500 + [False] * 2000
    if strategy in ("atomic", "lua"):
        made.update(opened.to_memory())
    # The estimate has a standard deviation of 4 items.
    assert opened.count() == pytest.approx(1501 + 500 * len(routes(strategy)), abs=20)
    assert sum(bool(node.dbsize()) for node in nodes) > 1
    if strategy == "atomic":
        with BloomFilter("other", 5000, 1e-9, client=cluster, shards=4) as other:
            other.export_file(tmp_path / "other")
            made.export_file(tmp_path / "file")
            options = {"client": cluster, "replace": True}
            again = BloomFilter.import_file("other", tmp_path / "file", **options)
            assert again.exists_many(["no", *items]) == [False] + [True] * 1500
            assert BloomFilter.import_file("other", tmp_path / "other", **options).count() == 0
            with made.copy_to(cluster, "other", replace=True) as third:
                assert all(third.exists_many(items))
                assert third.delete()
            assert not [key for node in nodes for key in node.keys("*other*")]
    if strategy != "native":
        copied = made.copy("elsewhere")
        assert all(copied.exists_many(items))
        assert copied.delete()
    made.clear()
    assert not any(made.exists_many(items))
    with pytest.raises(FilterLostError):
        opened.exists_many(items)
    assert made.delete()
    assert sum(node.dbsize() for node in nodes) == 0


def test_the_url_of_any_server_of_a_cluster_is_enough(cluster, nodes):
    port = nodes[2].connection_pool.connection_kwargs["port"]
    url = f"redis://127.0.0.1:{port}"
    with BloomFilter("by url", 5000, client=url, shards=4) as made:
        assert made.add_many(map(str, range(200))) == [True] * 200

    async def run():
        async with AsyncBloomFilter("by url", 5000, client=url, shards=4) as same:
            return await same.exists_many(map(str, range(200)))

    assert all(asyncio.run(run()))


@pytest.fixture
def sentinel():
    binary = servers.require_server("valkey")
    with ExitStack() as stack:
        master = stack.enter_context(PrivateServer(binary=binary, port=0))
        replica = stack.enter_context(
            PrivateServer(binary=binary, port=0, config={"replicaof": ["127.0.0.1", master.port]})
        )
        watcher = stack.enter_context(servers.sentinel(binary, "mymaster", master.port))
        yield master, replica, Sentinel([("127.0.0.1", watcher)], socket_timeout=2)


def test_a_failover_by_sentinel(sentinel):
    master, replica, watching = sentinel
    made = BloomFilter("s", 2000, client=watching.master_for("mymaster"), on_unknown="new")
    assert made.add("before")
    with redis.Redis(port=replica.port) as second:
        servers.wait_until(lambda: second.keys("*:bits") != [])
        with redis.Redis(port=master.port) as first:
            first.execute_command("WAIT", 1, 5000)
        master.kill()
        servers.wait_until(lambda: second.info("replication")["role"] == "master", 30)
    servers.wait_until(lambda: _answers(made), 30)
    assert made.exists("before")
    assert made.add("after")
    assert made.add("after") is False


def _answers(made):
    try:
        return made.exists("before")
    except redis.RedisError:
        return False


def test_filters_of_a_cluster_are_listed_and_deleted(cluster, nodes):
    for name in ("one", "two", "three"):
        BloomFilter(name, 1000, client=cluster, shards=2)
    assert bloomlock.catalog.list_filters(client=cluster) == ["one", "three", "two"]

    async def run():
        port = nodes[1].connection_pool.connection_kwargs["port"]
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
        assert await bloomlock.catalog.async_delete_filter("two", client=client) is True
        assert await bloomlock.catalog.async_delete_filter("two", client=client) is False
        found = await bloomlock.catalog.async_list_filters(client=client)
        await client.aclose()
        return found

    assert asyncio.run(run()) == ["one", "three"]


def test_each_server_of_a_cluster_needs_room_for_its_shards(cluster, nodes):
    try:
        for node in nodes:
            node.config_set("maxmemory", 30 * 2**20)
        # About 20 MiB on each server, 24 on the one with most shards.
        made = BloomFilter("spread", 10_000_000, client=cluster, error_rate=1e-6, shards=60)
        assert made.add("a")
        made.delete()
        expected = "takes .* of memory and a server of the cluster has .* free .maxmemory is"
        with pytest.raises(ConfigurationError, match=expected):
            BloomFilter("whole", 10_000_000, client=cluster, error_rate=1e-6, shards=1)
        with pytest.raises(ConfigurationError, match=expected):
            BloomFilter("spread", 30_000_000, client=cluster, error_rate=1e-6, shards=60)
        assert [node.dbsize() for node in nodes] == [0, 0, 0]
    finally:
        for node in nodes:
            node.config_set("maxmemory", 0)


def test_a_server_that_is_gone_is_looked_for_elsewhere():
    """Its slots have gone to another one, which the client has to find out by asking."""
    with servers.cluster(masters=2) as (one, two):
        nodes = [ClusterNode("127.0.0.1", servers.port_of(node)) for node in (one, two)]
        with RedisCluster(startup_nodes=nodes) as client:
            lock = Lock("a", client=client)
            slot = one.execute_command("CLUSTER", "KEYSLOT", lock.key)
            assert slot >= servers.SLOTS // 2
            with lock:
                pass
            two.shutdown(nosave=True)
            mine = one.execute_command("CLUSTER MYID")
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", mine)
            with lock:
                assert one.exists(lock.key)


@pytest.mark.usefixtures("cluster")
def test_a_batch_over_all_nodes_costs_one_round_trip(nodes):
    turns = Turns()
    port = nodes[0].connection_pool.connection_kwargs["port"]
    counted = counting(turns, redis.Connection)
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)]) as client:
        for node in client.get_nodes():
            pool = client.get_redis_connection(node).connection_pool
            pool.disconnect()
            pool.connection_class = counted
        made = BloomFilter("counted", 5000, 1e-9, client=client, shards=64)
        made.update(map(str, range(100)))
        made.delete()
        made = BloomFilter("counted", 5000, 1e-9, client=client, shards=64)
        made.add_many([f"warm {number}" for number in range(100)], route="items")
        batch = [str(number) for number in range(100)]
        assert turns.of(lambda: made.add_many(batch, route="items")) == 1
        assert turns.of(lambda: made.exists_many(batch, route="items")) == 1
        assert made.add_many(batch, route="items") == [False] * 100
        made.delete()


@contextlib.contextmanager
def paused(node, nodes):
    """Keep a server from carrying out updates, and count from now on what each carries out."""
    node.client_pause(60_000, all=False)
    for each in nodes:
        each.config_resetstat()
    try:
        yield
    finally:
        node.client_unpause()


def updated(node):
    return "cmdstat_bitfield" in node.info("commandstats")


def test_a_server_that_stands_still_or_is_gone_holds_up_no_other(cluster, nodes):
    """The connections of one are cut while it holds back the update."""
    made = BloomFilter("cut", 5000, 1e-9, client=cluster, shards=6)
    view = made._state.view
    items = [str(number) for number in range(300)]
    slots = [cluster.keyslot(shard.key) for shard in view.shards]
    for number, node in enumerate(nodes):
        mine = {n for n, slot in enumerate(slots) if slot * 3 // 16384 == number}
        batch = [f"{number} {item}" for item in items]
        others = [other for other in nodes if other is not node]
        with ThreadPoolExecutor(1) as pool, paused(node, nodes):
            answers = pool.submit(made.add_many, batch, route="items")
            servers.wait_until(lambda others=others: all(map(updated, others)))
            assert not updated(node)
            # A second look: it may not have sent to this one yet.
            servers.wait_until(lambda node=node: kill_blocked(node))
            with pytest.raises(OutcomeUnknownError) as caught:
                answers.result()
        known = caught.value.results
        for place, item in enumerate(batch):
            shard, _ = view.hasher.locate(item.encode())
            answer = known[place] if place < len(known) else None
            assert answer is (None if shard in mine else True), (item, shard)


def kill_blocked(node):
    """Cut the clients whose update is held back; return how many."""
    held = [one for one in node.client_list() if "b" in one["flags"] and one["cmd"] == "bitfield"]
    for one in held:
        node.client_kill_filter(_id=one["id"])
    return len(held)
