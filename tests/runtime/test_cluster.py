"""A filter over a real cluster of three servers, and over a real Sentinel."""

from __future__ import annotations

import asyncio
import contextlib
import threading
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
from bloomlock import AsyncBloomFilter, BloomFilter, Lock, LockStrategy
from bloomlock.commands import encode_command
from bloomlock.effects import Request, Transaction
from bloomlock.errors import ConfigurationError, FilterLostError, OutcomeUnknownError
from bloomlock.runtime.tasks import tasks_for
from bloomlock.runtime.threads import threads_for
from bloomlock.strategies.lock import UPDATE


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


def test_a_union_over_slots(cluster):
    a, b = (BloomFilter(name, 5000, 1e-9, client=cluster, shards=4) for name in ("one", "two"))
    a.update(str(number) for number in range(1000))
    b.update(str(number) for number in range(500, 1500))
    a |= b
    assert a.exists_many(map(str, range(1500))) == [True] * 1500
    assert not b.exists("0")


def test_the_url_of_any_server_of_a_cluster_is_enough(cluster, nodes):
    port = nodes[2].connection_pool.connection_kwargs["port"]
    url = f"redis://127.0.0.1:{port}"
    with BloomFilter("by url", 5000, client=url, shards=4) as made:
        assert made.add_many(map(str, range(200))) == [True] * 200

    async def run():
        async with AsyncBloomFilter("by url", 5000, client=url, shards=4) as same:
            return await same.exists_many(map(str, range(200)))

    assert all(asyncio.run(run()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_slot_that_moves_loses_nothing(cluster, nodes, strategy):
    how = LockStrategy(timeout=3.0) if strategy == "lock" else strategy
    made = BloomFilter("moving", 5000, 1e-9, client=cluster, strategy=how)
    items = [str(number) for number in range(1200)]
    assert made.add_many(items[:600]) == [True] * 600
    key = "bloomlock:{moving}:bits"
    slot = cluster.keyslot(key)
    ids = [node.execute_command("CLUSTER", "MYID") for node in nodes]
    old = next(i for i, node in enumerate(nodes) if node.keys("*moving*"))
    new = (old + 1) % 3
    nodes[new].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old])
    nodes[old].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new])
    port = nodes[new].connection_pool.connection_kwargs["port"]
    for moved in nodes[old].keys("*moving*"):
        nodes[old].execute_command("MIGRATE", "127.0.0.1", port, moved, 0, 5000)
    # The old owner answers ASK now: the keys are gone, the slot is not.
    assert made.exists_many(["0", "nothing"]) == [True, False]
    if strategy == "lock":
        # A lock has several keys; a cluster answers TRYAGAIN for those until the slot has moved.
        with pytest.raises(redis.exceptions.TryAgainError, match="the cluster moves the slot of "):
            while True:
                # Where the last request of the three seconds met a machine that stood still, it
                # was not answered in time, which says nothing of the slot.
                with contextlib.suppress(redis.exceptions.TimeoutError):
                    made.add("while it moves")
                    break
    else:
        assert made.add("while it moves") is True
        for route in routes(strategy):
            # A merge has several keys too; items take its place.
            batch = [f"{route} {number}" for number in range(300)]
            assert made.add_many([*batch, *batch], route=route) == [True] * 300 + [False] * 300
    for node in (nodes[new], nodes[old]):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[new])
    # Now it answers MOVED.
    assert made.add_many(items) == [False] * 600 + [True] * 600
    assert made.exists("while it moves") is (strategy != "lock")
    assert BloomFilter.open("moving", client=cluster, strategy=maker_of(strategy)).exists("0")


def test_the_lock_strategy_waits_until_a_slot_has_moved(cluster, nodes):
    made = BloomFilter("waiting", 5000, 1e-9, client=cluster, strategy="lock")
    assert made.add("before") is True
    move = servers.Move(cluster, nodes, "waiting")
    refused = sum(map(_refusals, nodes))
    move.begin()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(made.add("meanwhile")))
    thread.start()
    servers.wait_until(lambda: sum(map(_refusals, nodes)) > refused + 2)
    assert answers == []
    move.finish()
    thread.join(60)
    assert answers == [True]
    assert made.add_many(["before", "meanwhile"]) == [False, False]


def _refusals(node):
    stats = node.info("errorstats")
    names = ("errorstat_TRYAGAIN", "errorstat_ASK")
    return sum(stats[name]["count"] for name in names if name in stats)


def test_a_slot_that_moves_away_from_under_a_held_lock_is_followed(cluster, nodes):
    made = BloomFilter("away", 5000, 1e-9, client=cluster, strategy="lock")
    assert made.add("before") is True
    move = servers.Move(cluster, nodes, "away")
    moved = []

    def moving(core):
        """Carry out a core, and move the slot between the grant of the lock and the update."""
        answer = None
        with contextlib.suppress(StopIteration):
            while True:
                step = core.send(answer)
                if (
                    not moved
                    and isinstance(step, Request)
                    and UPDATE.digest.encode() in step.commands[0]
                ):
                    move.begin()
                    move.finish()
                    moved.append(step)
                answer = yield step

    view = made._state.view
    segments = []

    def exchange():
        ask = made._state.strategy.ask
        for _, found in (yield from ask(view.shards, [b"moved"], write=True)):
            segments.extend(found)

    made._runtime.run(moving(exchange()))
    assert moved
    assert [(list(s.missing), s.error) for s in segments] == [([True], None)]
    assert made.add("after") is True


def watching(key):
    set_it = [encode_command("SET", key, "2")]
    looks = [encode_command("WATCH", key)]
    return (yield Transaction(key, looks, lambda replies: (replies, set_it)))


DONE = ([b"OK"], [b"OK", b"QUEUED", [b"OK"]])


def test_a_first_watch_follows_a_slot_that_has_moved(cluster, nodes):
    cluster.set("{watched}", "1")
    client = redis.RedisCluster(startup_nodes=cluster.get_nodes())
    assert threads_for(client).run(watching("{watched}")) == DONE
    move = servers.Move(cluster, nodes, "watched")
    move.begin()
    move.finish()
    assert threads_for(client).run(watching("{watched}")) == DONE
    client.close()

    async def run():
        port = move.new.connection_pool.connection_kwargs["port"]
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
            runtime = tasks_for(client)
            assert await runtime.run(watching("{watched}")) == DONE
            back = servers.Move(cluster, nodes, "watched")
            back.begin()
            back.finish()
            assert await runtime.run(watching("{watched}")) == DONE

    asyncio.run(run())


@pytest.mark.parametrize("strategy", ["atomic", "lock"])
def test_asyncio_over_the_cluster(cluster, nodes, strategy):
    async def run():
        port = nodes[1].connection_pool.connection_kwargs["port"]
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
        made = await AsyncBloomFilter("a", 5000, 1e-9, client=client, strategy=strategy, shards=4)
        items = [str(number) for number in range(200)]
        answers = await asyncio.gather(*(made.add(item) for item in items + items))
        assert sum(answers) == 200
        assert all(await made.exists_many(items))
        await client.aclose()

    asyncio.run(run())
    assert BloomFilter.open("a", client=cluster, strategy=maker_of(strategy)).exists("7")


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
    binary = servers.require_server("valkey")
    config = {"cluster-enabled": "yes", "cluster-node-timeout": "60000"}
    with ExitStack() as stack:
        kept, lost = (
            stack.enter_context(
                PrivateServer(binary=binary, port=servers.low_port(), config=config)
            )
            for _ in range(2)
        )
        one, two = (redis.Redis(port=node.port, decode_responses=True) for node in (kept, lost))
        lock = Lock("a", client=stack.enter_context(two_servers(one, two, kept, lost)))
        slot = one.execute_command("CLUSTER", "KEYSLOT", lock.key)
        assert slot >= servers.SLOTS // 2
        with lock:
            pass
        lost.kill()
        one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", one.execute_command("CLUSTER MYID"))
        with lock:
            assert one.exists(lock.key)


def two_servers(one, two, kept, lost):
    """Make a cluster of two servers with half of the slots each; return a client."""
    half = servers.SLOTS // 2
    one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, half - 1)
    two.execute_command("CLUSTER", "ADDSLOTSRANGE", half, servers.SLOTS - 1)
    two.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
    two.execute_command("CLUSTER", "MEET", "127.0.0.1", kept.port)
    servers.wait_until(
        lambda: all(
            c.cluster("info").get("cluster_state") == "ok" and len(c.cluster("nodes")) == 2
            for c in (one, two)
        )
    )
    return RedisCluster(
        startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in (kept, lost)]
    )


@pytest.mark.parametrize("shards", [6, 64])
def test_every_master_has_its_part_of_the_shards(cluster, nodes, shards):
    made = BloomFilter("pages", 5000, 1e-9, client=cluster, shards=shards)
    made.add_many(map(str, range(1000)))
    counts = sorted(len(node.keys("*:bits")) for node in nodes)
    assert sum(counts) == shards
    assert counts[0] > shards / 6
    assert made.delete()
    assert sum(node.dbsize() for node in nodes) == 0


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


def test_a_server_that_stands_still_holds_up_no_other(cluster, nodes):
    made = BloomFilter("threads", 5000, 1e-9, client=cluster, shards=6)
    batch = [str(number) for number in range(300)]
    with ThreadPoolExecutor(1) as pool:
        for turn, node in enumerate(nodes):
            items = [f"{turn} {item}" for item in batch]
            others = [other for other in nodes if other is not node]
            with paused(node, nodes):
                answers = pool.submit(made.add_many, items, route="items")
                servers.wait_until(lambda others=others: all(map(updated, others)))
                assert not updated(node)
            assert answers.result() == [True] * 300


def test_a_node_that_is_gone_leaves_the_answers_of_the_others(cluster, nodes):
    """The connections of one node are cut while it holds back the update."""
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
