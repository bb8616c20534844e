"""Every kind of client: RESP2 and RESP3, decoded or not, Cluster, Sentinel, URLs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest
import redis
import redis.asyncio
import servers
from lock_tools import LONG, happened, is_free, queue_of
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel
from servers import wait_until

from bloomlock import AsyncLock, AsyncReadWriteLock, Lock, LockLostError, ReadWriteLock
from bloomlock.server import PrivateServer

NAMES = [f"job {number}" for number in range(12)]
OFTEN = pytest.mark.usefixtures("often")


@pytest.mark.parametrize(
    ("protocol", "decode"), list(itertools.product((2, 3), (False, True))), ids=str
)
def test_protocols_and_decoding(server_url, protocol, decode):
    with redis.Redis.from_url(server_url, protocol=protocol, decode_responses=decode) as client:
        client.flushall()
        hand_over(lambda: Lock("job", client=client), client)
        hand_over(lambda: ReadWriteLock("job", client=client).read, client)
    asyncio.run(hand_over_awaited(server_url, protocol=protocol, decode_responses=decode))


def hand_over(make, client):
    """Let three threads wait in the queue and have the lock one after the other."""
    blocker, done = Lock("job", client=client), []
    blocker.acquire()

    def work():
        lock = make()
        with lock:
            assert lock.owned()
            lock.extend(30)
            done.append(lock.token)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: queue_of(client, blocker) == 3)
    blocker.release()
    for thread in threads:
        thread.join(LONG)
    assert len(set(done)) == 3
    assert is_free(client, blocker)


async def hand_over_awaited(url, **options):
    async with redis.asyncio.Redis.from_url(url, **options) as client:
        blocker, done = AsyncLock("job", client=client), []

        async def work(lock):
            async with lock:
                assert await lock.owned()
                await lock.extend(30)
                done.append(lock.token)

        both = AsyncReadWriteLock("job", client=client)
        await blocker.acquire()
        locks = [AsyncLock("job", client=client), both.read, both.write, both.read]
        tasks = [asyncio.create_task(work(lock)) for lock in locks]
        with redis.Redis.from_url(url) as r:
            await happened(lambda: queue_of(r, blocker) == len(locks))
            await blocker.release()
            await asyncio.gather(*tasks)
            assert len(set(done)) == len(locks)
            assert is_free(r, blocker)
        await blocker.close()


@pytest.fixture(scope="module")
def nodes():
    """Three masters that own a third of the slots each."""
    # No server that a test stops for a while is given up by the others.
    with servers.cluster(node_timeout_ms=60_000) as clients:
        for client in clients:
            client.pid = client.info("server")["process_id"]
        yield clients


@pytest.fixture
def port(nodes):
    for client in nodes:
        client.flushall()
    return nodes[0].connection_pool.connection_kwargs["port"]


def waiting(nodes):
    return sum(node.zcard(key) for node in nodes for key in node.keys("*:lock:queue"))


def held(nodes):
    return sum(len(node.keys("*:lock")) for node in nodes)


class Renewals(Counter):
    """An observer that counts by the lock's name."""

    def __call__(self, event):
        self[event.name] += event.kind == "renewed"

    def more(self, count, names=NAMES):
        """Return a condition: all of them were renewed so often after this."""
        enough = {name: self[name] + count for name in names}
        return lambda: all(self[name] >= enough[name] for name in names)


@OFTEN
def test_cluster(nodes, port):
    renewals = Renewals()
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)]) as client:
        locks = [Lock(name, client, LONG, thread_local=False, observer=renewals) for name in NAMES]
        for lock in locks:
            lock.acquire()
            lock.extend()
        assert all(node.keys("*:lock") for node in nodes)
        done = []

        def work(name):
            with Lock(name, client, LONG) as lock:
                done.append((name, lock.owned()))

        threads = [threading.Thread(target=work, args=(name,)) for name in NAMES]
        for thread in threads:
            thread.start()
        wait_until(lambda: waiting(nodes) == len(NAMES))
        # Each is renewed, in whichever slot it lies.
        wait_until(renewals.more(2), LONG)
        for lock in locks:
            lock.check()
            lock.release()
        for thread in threads:
            thread.join(LONG)
        assert sorted(done) == sorted((name, True) for name in NAMES)
        assert held(nodes) == waiting(nodes) == 0


def is_whole(node):
    with contextlib.suppress(redis.RedisError):
        return node.cluster("info").get("cluster_state") == "ok"
    return False


SHORT = 1.0
"""A lease that ends while its server is silent."""


def held_by(some):
    """Return the names of the locks that some of the servers hold."""
    return {key.split("{")[1].split("}")[0] for node in some for key in node.keys("*:lock")}


@contextmanager
def one_stopped(nodes):
    """Let the first server answer nothing."""
    os.kill(nodes[0].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(nodes[0].pid, signal.SIGCONT)
        wait_until(lambda: all(is_whole(node) for node in nodes), LONG)


@OFTEN
def test_a_silent_server_of_a_cluster_holds_up_no_renewal_on_the_others(nodes, port):
    options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
    node = ClusterNode("127.0.0.1", port)
    with RedisCluster(startup_nodes=[node], **options) as client:
        renewals = Renewals()
        locks = [Lock(name, client, LONG, observer=renewals) for name in NAMES]
        for lock in locks:
            lock.acquire()
        silent, others = held_by(nodes[:1]), held_by(nodes[1:])
        assert silent
        assert others
        for lock in locks:
            lock.extend(SHORT if lock.name in silent else LONG)
        with one_stopped(nodes):
            go_on = renewals.more(3, others)
            wait_until(lambda: all(lock.lost.is_set() for lock in locks if lock.name in silent))
            wait_until(go_on, LONG)
            assert {lock.name for lock in locks if lock.lost.is_set()} == silent
        for lock in locks:
            with contextlib.suppress(LockLostError):
                lock.release()


@OFTEN
def test_a_silent_server_of_a_cluster_in_asyncio(nodes, port):
    async def main():
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port, socket_timeout=1.0)
        renewals = Renewals()
        locks = [AsyncLock(name, client, LONG, observer=renewals) for name in NAMES]
        for lock in locks:
            await lock.acquire()
        silent, others = held_by(nodes[:1]), held_by(nodes[1:])
        for lock in locks:
            await lock.extend(SHORT if lock.name in silent else LONG)
        with one_stopped(nodes):
            go_on = renewals.more(3, others)
            await happened(lambda: all(k.lost.is_set() for k in locks if k.name in silent))
            await happened(go_on)
            assert {lock.name for lock in locks if lock.lost.is_set()} == silent
        for lock in locks:
            with contextlib.suppress(LockLostError):
                await lock.release()
        await client.aclose()

    asyncio.run(main())


def test_cluster_by_the_url_of_one_server(nodes, port):
    url = f"redis://127.0.0.1:{port}"
    locks = [Lock(name, client=url) for name in NAMES[:4]]
    for lock in locks:
        with lock:
            assert Lock(lock.name, client=url).acquire(timeout=0.05) is False
        lock.close()
    assert held(nodes) == waiting(nodes) == 0


@OFTEN
def test_cluster_asyncio(nodes, port):
    async def main():
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
        renewals = Renewals()
        locks = [AsyncLock(name, client, LONG, observer=renewals) for name in NAMES]
        for lock in locks:
            await lock.acquire()
            await lock.extend()
        done = []

        async def work(name):
            async with AsyncLock(name, client, LONG) as lock:
                done.append((name, await lock.owned()))

        tasks = [asyncio.create_task(work(name)) for name in NAMES]
        await happened(lambda: waiting(nodes) == len(NAMES))
        await happened(renewals.more(2))
        for lock in locks:
            lock.check()
            await lock.release()
        await asyncio.gather(*tasks)
        assert sorted(done) == sorted((name, True) for name in NAMES)
        assert held(nodes) == waiting(nodes) == 0
        await locks[0].close()
        await client.aclose()

    asyncio.run(main())


@pytest.fixture
def sentinel():
    binary = servers.require_server("valkey")
    with ExitStack() as stack:
        master = stack.enter_context(PrivateServer(binary=binary, port=0))
        replica = stack.enter_context(
            PrivateServer(binary=binary, port=0, config={"replicaof": ["127.0.0.1", master.port]})
        )
        yield master, replica, stack.enter_context(servers.sentinel(binary, "mine", master.port))


def test_sentinel_with_a_failover_while_held_and_waited_for(sentinel):
    master, replica, port = sentinel
    client = Sentinel([("127.0.0.1", port)], socket_timeout=2).master_for("mine")
    # Long enough to outlive the failover.
    holder, waiter = Lock("job", client, LONG, replicas=0), Lock("job", client, LONG)
    holder.acquire()
    token, got = holder.token.encode(), []
    thread = threading.Thread(target=lambda: got.append(waiter.acquire()) or waiter.release())
    thread.start()
    with redis.Redis(port=replica.port) as second, redis.Redis(port=master.port) as first:
        wait_until(lambda: queue_of(first, holder) == 1)
        wait_until(lambda: second.get(holder.key) == token and queue_of(second, holder) == 1)
        master.kill()
        wait_until(lambda: second.info("replication")["role"] == "master", LONG)
        wait_until(lambda: reaches(holder), LONG)
        assert second.get(holder.key) == token
        holder.check()
        holder.release()
        thread.join(LONG)
        assert got == [True]
        assert is_free(second, holder)

    async def main():
        watching = AsyncSentinel([("127.0.0.1", port)], socket_timeout=2)
        client = watching.master_for("mine")
        one, two = AsyncLock("job", client), AsyncLock("job", client)
        async with one:
            task = asyncio.create_task(two.acquire())
            await happened(lambda: queue_of(replica_client, one) == 1)
        assert await task
        await two.release()
        await one.close()
        await client.aclose()

    with redis.Redis(port=replica.port) as replica_client:
        asyncio.run(main())
        assert is_free(replica_client, holder)


def reaches(lock):
    try:
        return lock.owned()
    except redis.RedisError:
        return False
