"""Waiters share connections, ride over outages and leave nothing behind."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from contract.lock_backends import TTL
from lock_tools import NAME, commands_so_far, connections, happened, is_free, other_tasks, queue_of
from people import Person
from proxy import HANDSHAKE, Proxy
from servers import wait_until

from bloomlock import AsyncLock, Lock
from bloomlock.locks.protocol import waiting


def test_each_step_of_a_free_lock_is_one_round_trip(valkey, r):
    with Proxy(valkey) as proxy, redis.Redis.from_url(proxy.url) as through:
        lock = Lock("job", through, TTL)
        r.script_flush()
        # The server learns the script once.
        for first in (["EVALSHA", "EVAL"], ["EVALSHA"]):
            for step in (lock.acquire, lock.extend, lock.release):
                before = len(proxy.seen)
                step()
                names = [name for name in proxy.seen[before:] if name not in HANDSHAKE]
                assert names == (first if step == lock.acquire else ["EVALSHA"])


@pytest.mark.parametrize("side", ["read", "write"])
def test_everything_of_clients_that_were_killed_expires(r, world, ann, bob, side):
    """A queue lives on as long as somebody asks, and so does what it is known by."""
    both = world.lock_class("ReadWriteLock")("job", world._client(world.urls[0]), TTL)
    holder, waiter = getattr(both, side), world.lock()
    ann(holder.acquire)
    future = bob.start(waiter.acquire)
    while world.waiting(waiter) == 0:
        assert not future.done()
    for key in r.keys("*{job}*"):
        assert 0 < r.pttl(key) <= 2000 * TTL, key
    ann(holder.release)
    assert future.result(TTL) is True
    bob(waiter.release)
    world._closed.append(both)


def test_a_waiter_outlasts_the_time_out_of_its_socket(r, valkey, monkeypatch):
    monkeypatch.setattr(waiting, "SLICE_MS", 600)
    with redis.Redis.from_url(valkey, socket_timeout=0.2) as client:
        holder, waiter = Lock("job", client=r, ttl=TTL), Lock("job", client=client)
        holder.acquire()
        before = commands_so_far(r, "evalsha", "eval")
        got = []
        thread = threading.Thread(target=lambda: got.append(waiter.acquire()) or waiter.release())
        thread.start()
        # It has asked again, so it has slept for longer than its socket waits.
        wait_until(lambda: commands_so_far(r, "evalsha", "eval") >= before + 3)
        holder.release()
        thread.join()
        assert got == [True]
        waiter.close()


def test_waiters_take_no_connection_that_the_holder_needs(valkey, r):
    pool = redis.BlockingConnectionPool.from_url(valkey, max_connections=2, timeout=TTL)
    with redis.Redis(connection_pool=pool) as client:
        lock, done = Lock("job", client=client), []

        def work():
            with lock:
                done.append(len(done))

        with lock:
            threads = [threading.Thread(target=work) for _ in range(6)]
            for thread in threads:
                thread.start()
            lock.check()
            lock.extend()
        for thread in threads:
            thread.join()
        assert done == list(range(6))
        lock.close()
    assert is_free(r, lock)


def test_a_waiter_rides_over_a_restart_of_the_server(stoppable):
    with redis.Redis.from_url(stoppable.url) as r:
        holder, waiter = Lock("job", client=r), Lock("job", client=stoppable.url)
        holder.acquire()
        got = []
        thread = threading.Thread(target=lambda: got.append(waiter.acquire()))
        thread.start()
        wait_until(lambda: queue_of(r, holder) == 1)
    stoppable.kill()
    stoppable.start()
    thread.join()
    assert got == [True]
    waiter.close()


@pytest.mark.parametrize(
    "pool", [redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool]
)
def test_asyncio_a_hundred_tasks_share_few_connections(r, valkey, pool):
    async def main():
        made = pool.from_url(valkey, max_connections=3, client_name=NAME)
        client = redis.asyncio.Redis(connection_pool=made)
        lock, done = AsyncLock("job", client, TTL), []

        async def work():
            async with lock:
                done.append(len(done))

        async with AsyncLock("job", client, TTL):
            tasks = [asyncio.create_task(work()) for _ in range(100)]
            await happened(lambda: queue_of(r, lock) == 100)
            # Those of the pool, and one that listens.
            assert connections(r) <= 4
            await happened(lambda: not made._in_use_connections)
            assert [t.get_name() for t in other_tasks()].count("bloomlock-hub") == 1
        await asyncio.gather(*tasks)
        assert done == list(range(100))
        await lock.close()
        await happened(lambda: not other_tasks())
        await client.aclose()
        await made.disconnect()
        await happened(lambda: connections(r) == 0)
        assert is_free(r, lock)

    asyncio.run(main())


def test_asyncio_rides_over_a_killed_connection_for_messages(r, valkey, monkeypatch):
    monkeypatch.setattr(waiting, "SLICE_MS", 100)

    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock, done = AsyncLock("job", client, TTL), []

            async def work(number):
                async with lock:
                    done.append(number)

            holder = AsyncLock("job", client, TTL)
            await holder.acquire()
            tasks = [asyncio.create_task(work(number)) for number in range(5)]
            await happened(lambda: queue_of(r, lock) == 5)
            r.client_kill_filter(_type="pubsub")
            await holder.release()
            await asyncio.gather(*tasks)
            assert sorted(done) == list(range(5))
            await lock.close()

    asyncio.run(main())


def test_closing_leaves_no_connection(r, valkey):
    with redis.Redis.from_url(valkey, client_name=NAME) as client:
        lock, holder = Lock("job", client=client), Lock("job", client=r)
        holder.acquire()
        people = [Person() for _ in range(4)]
        waits = []
        for person in people:
            waits.append(person.start(lock.acquire))
            wait_until(lambda: queue_of(r, lock) == len(waits))
        holder.release()
        for person, wait in zip(people, waits, strict=True):
            assert wait.result(TTL) is True
            person(lock.release)
            person.end()
        lock.close()
    wait_until(lambda: connections(r) == 0)
