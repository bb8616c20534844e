"""Every kind of client: RESP2 and RESP3, decoded or not, Cluster, Sentinel, URLs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter

import pytest
import redis
import redis.asyncio
import servers
from contract.lock_backends import TTL, Backend, World
from lock_tools import happened, is_free, queue_of
from people import AsyncPerson, Loop, Person
from private import PrivateServer
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel
from servers import wait_until

from bloomlock import AsyncLock, Lock
from bloomlock.errors import LockLostError

NAMES = [f"job {number}" for number in range(12)]


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_protocols_and_decoding(valkey, is_async, protocol, decode):
    url = f"{valkey}{'&' if '?' in valkey else '?'}protocol={protocol}&decode_responses={decode}"
    for kind in ("Lock", "read"):
        with contextlib.ExitStack() as stack:
            world = World(Backend(kind, is_async), [url], stack)
            (holder, ann), (waiter, bob) = [
                (f(), world.person()) for f in (world.rival, world.lock)
            ]
            ann(holder.acquire)
            waiting = bob.start(waiter.acquire)
            wait_until(lambda world=world, waiter=waiter: world.waiting(waiter) == 1)
            ann(holder.release)
            assert waiting.result(TTL) is True
            assert bob(waiter.owned)
            assert bob(waiter.extend, 30)
            bob(waiter.release)
            assert world.is_free(waiter)


@pytest.fixture(scope="module")
def nodes():
    with servers.cluster(node_timeout_ms=60_000) as clients:
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


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_cluster(nodes, port, clock, is_async):
    renewals = Renewals()
    with contextlib.ExitStack() as stack:
        if is_async:
            loop, kind = stack.enter_context(Loop()), AsyncLock
            client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
            stack.callback(lambda: loop.run(client.aclose()))
            holder, *people = [AsyncPerson(loop.loop) for _ in range(1 + len(NAMES))]
        else:
            kind, nearest = Lock, ClusterNode("127.0.0.1", port)
            client = stack.enter_context(RedisCluster(startup_nodes=[nearest]))
            holder, *people = [Person() for _ in range(1 + len(NAMES))]
        locks = [kind(name, client, TTL, observer=renewals) for name in NAMES]
        others = [kind(name, client, TTL) for name in NAMES]
        for lock in locks:
            holder(lock.acquire)
        assert all(node.keys("*:lock") for node in nodes)
        waits = [person.start(o.acquire) for person, o in zip(people, others, strict=True)]
        wait_until(lambda: waiting(nodes) == len(NAMES))
        clock.advance(0.4 * TTL)
        # Each is renewed, in whichever slot it lies.
        wait_until(lambda: len(+renewals) == len(NAMES))
        for lock in locks:
            holder(lock.check)
            holder(lock.release)
        for person, other, wait in zip(people, others, waits, strict=True):
            assert wait.result(TTL) is True
            person(other.release)
        assert held(nodes) == waiting(nodes) == 0
        holder(locks[0].close)
        for person in (holder, *people):
            person.end()


def test_a_silent_server_of_a_cluster_holds_up_no_renewal_on_the_others(nodes, port, clock):
    renewals, told = Renewals(), []
    # It waits for the silent server for longer than the test does.
    nobody_gives_up = {"socket_timeout": 10 * TTL}
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)], **nobody_gives_up) as client:
        locks = [Lock(name, client, TTL, observer=renewals, on_lost=told.append) for name in NAMES]
        for lock in locks:
            lock.acquire()
        silent = {k.split("{")[1].split("}")[0] for k in nodes[0].keys("*:lock")}
        pid = nodes[0].info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            for count in (1, 2, 3):
                clock.advance(0.4 * TTL)
                wait_until(
                    lambda count=count: all(renewals[n] >= count for n in set(NAMES) - silent)
                )
            wait_until(lambda: {lock.name for lock in told} == silent)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: nodes[0].cluster("info")["cluster_state"] == "ok")
        for lock in locks:
            with contextlib.suppress(LockLostError):
                lock.release()


def test_cluster_by_the_url_of_one_server(nodes, port):
    url = f"redis://127.0.0.1:{port}"
    for lock in [Lock(name, client=url) for name in NAMES[:4]]:
        with lock:
            other = Lock(lock.name, client=url)
            assert other.acquire(timeout=0.01) is False
            other.close()
        lock.close()
    assert held(nodes) == waiting(nodes) == 0


@pytest.fixture
def sentinel():
    binary = servers.require_server("valkey")
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(PrivateServer(binary=binary, port=0))
        follow = {"replicaof": ["127.0.0.1", master.port]}
        replica = stack.enter_context(PrivateServer(binary=binary, port=0, config=follow))
        yield master, replica, stack.enter_context(servers.sentinel(binary, "mine", master.port))


def reaches(lock):
    with contextlib.suppress(redis.RedisError):
        return lock.owned()
    return False


def test_sentinel_with_a_failover_while_held_and_waited_for(sentinel):
    master, replica, port = sentinel
    client = Sentinel([("127.0.0.1", port)], socket_timeout=2).master_for("mine")
    # Long enough to outlive the failover.
    holder, waiter, person = Lock("job", client, 600), Lock("job", client, 600), Person()
    holder.acquire()
    token = holder.token.encode()
    wait = person.start(waiter.acquire)
    with redis.Redis(port=replica.port) as second:
        wait_until(lambda: second.get(holder.key) == token and queue_of(second, holder) == 1)
        master.kill()
        wait_until(lambda: second.info("replication")["role"] == "master")
        wait_until(lambda: reaches(holder))
        assert second.get(holder.key) == token
        holder.check()
        holder.release()
        assert wait.result(TTL) is True
        person(waiter.release)
        assert is_free(second, holder)

        async def main():
            client = AsyncSentinel([("127.0.0.1", port)], socket_timeout=2).master_for("mine")
            one, two = AsyncLock("job", client), AsyncLock("job", client)
            async with one:
                task = asyncio.create_task(two.acquire())
                await happened(lambda: queue_of(second, one) == 1)
            assert await task
            await one.close()
            await client.aclose()

        asyncio.run(main())
    person.end()
