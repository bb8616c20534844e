"""Waiters are woken one by one, take no connection that a holder needs, leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis
import redis.asyncio
import servers
from lock_tools import (
    LONG,
    NAME,
    commands_so_far,
    connections,
    happened,
    is_free,
    other_tasks,
    queue_of,
)
from servers import wait_until

from bloomlock import AsyncLock, FairLock, Lock
from bloomlock.server import PrivateServer

CROWD = 30
MANY = 300
ASKING = ("evalsha", "eval")
RETRIED = 2
"""Commands of a waiter whose slice ends in the middle of the test on a slow machine."""


def start(function, count):
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_a_release_wakes_one(r, valkey):
    holder, order = FairLock("job", client=r), []
    holder.acquire()

    def work(number):
        with redis.Redis.from_url(valkey) as client:
            lock = FairLock("job", client=client)
            lock.acquire()
            order.append((number, lock.fence))
            time.sleep(0.01)
            lock.release()

    threads = start(work, CROWD)
    wait_until(lambda: queue_of(r, holder) == CROWD)
    before = commands_so_far(r, *ASKING)
    holder.release()
    for thread in threads:
        thread.join(LONG)
    # Each release is a script; nobody has to ask for what it was handed. Thirty asking each
    # time would be nine hundred.
    assert commands_so_far(r, *ASKING) - before <= CROWD * (1 + RETRIED)
    assert len(order) == CROWD
    fences = [fence for _, fence in order]
    assert fences == sorted(set(fences))
    assert is_free(r, holder)


def test_in_the_order_of_asking(r):
    holder, order = FairLock("job", client=r), []
    holder.acquire()

    def work(number):
        with FairLock("job", client=r):
            order.append(number)

    threads = []
    for number in range(12):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        wait_until(lambda number=number: queue_of(r, holder) == number + 1)
    holder.release()
    for thread in threads:
        thread.join(LONG)
    assert order == list(range(12))


def test_waiting_longer_than_the_usual_time_out_of_a_socket(r, valkey):
    with redis.Redis.from_url(valkey, socket_timeout=0.3) as client:
        holder, waiter = Lock("job", client=r), Lock("job", client=client)
        holder.acquire()
        got = []
        thread = threading.Thread(target=lambda: got.append(waiter.acquire()) or waiter.release())
        thread.start()
        time.sleep(1)
        assert queue_of(r, holder) == 1
        holder.release()
        thread.join(LONG)
        assert got == [True]


def test_waiters_take_no_connection_that_the_holder_needs(valkey, r):
    pool = redis.BlockingConnectionPool.from_url(valkey, max_connections=2, timeout=LONG)
    inside, most = [], []
    with redis.Redis(connection_pool=pool) as client:
        lock = Lock("job", client=client)

        def work(_):
            for _ in range(5):
                with lock:
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()

        for thread in start(work, 12):
            thread.join(LONG)
        assert most == [1] * 60
        assert client.ping()
        lock.close()
    assert is_free(r, lock)


def test_a_time_out_leaves_no_place_in_the_queue(any_url):
    with redis.Redis.from_url(any_url) as r:
        with Lock("job", client=r) as holder:
            waiter = Lock("job", client=r)

            def work(_):
                assert waiter.acquire(timeout=0.2) is False
                assert waiter.acquire(blocking=False) is False

            for thread in start(work, 5):
                thread.join(LONG)
            assert queue_of(r, holder) == 0
            assert not r.exists(f"{holder.key}:alive")
        assert is_free(r, holder)


def test_a_waiter_rides_over_a_restart_of_the_server():
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        with redis.Redis.from_url(server.url) as r:
            holder, waiter = Lock("job", client=r), Lock("job", client=server.url)
            holder.acquire()
            got = []
            thread = threading.Thread(target=lambda: got.append(waiter.acquire()))
            thread.start()
            wait_until(lambda: queue_of(r, holder) == 1)
        server.kill()
        time.sleep(0.2)
        server.start()
        thread.join(LONG)
        assert got == [True]


def test_no_threads_and_connections_are_left(r, valkey):
    with redis.Redis.from_url(valkey, client_name=NAME) as client:
        lock = Lock("job", client=client)

        def work(_):
            for _ in range(10):
                with lock:
                    pass

        def settle():
            for thread in start(work, 10):
                thread.join(LONG)
            names = sorted(thread.name for thread in threading.enumerate())
            return [name for name in names if "renewal" not in name], connections(r)

        threads, _ = settle()
        for _ in range(5):
            again, open_now = settle()
            assert len(again) <= len(threads)
            # At most one for each thread that asks, and those that are kept for the next wait.
            assert open_now <= 10 + 4 + 1
        lock.close()
    wait_until(lambda: connections(r) == 0)


def test_three_hundred_tasks_share_few_connections(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey, client_name=NAME) as client:
            lock = AsyncLock("job", client=client, ttl=LONG)
            inside, most, names = [], [], []

            async def work():
                async with lock:
                    inside.append(1)
                    most.append(len(inside))
                    await asyncio.sleep(0)
                    inside.pop()

            async with AsyncLock("job", client=client, ttl=LONG):
                tasks = [asyncio.create_task(work()) for _ in range(MANY)]
                await happened(lambda: queue_of(r, lock) == MANY)
                # The hub's, and those of the requests in the beginning.
                assert connections(r) <= 17
                await happened(lambda: not client.connection_pool._in_use_connections)
                names = [task.get_name() for task in other_tasks()]
                assert names.count("bloomlock-hub") == 1
                assert len(names) == MANY + 1
            await asyncio.gather(*tasks)
            assert most == [1] * MANY
            assert is_free(r, lock)
            await asyncio.sleep(0)
            assert not other_tasks()
            assert connections(r) <= 17
            await lock.close()
        await happened(lambda: connections(r) == 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    "pool", [redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool]
)
def test_a_hundred_tasks_with_two_connections(r, valkey, pool):
    async def main():
        made = pool.from_url(valkey, max_connections=2, client_name=NAME)
        client = redis.asyncio.Redis(connection_pool=made)
        lock, count = AsyncLock("job", client=client), []

        async def work():
            async with lock:
                count.append(len(count))

        await asyncio.gather(*(work() for _ in range(100)))
        assert count == list(range(100))
        assert connections(r) <= 3
        await lock.close()
        await client.aclose()
        await client.connection_pool.disconnect()

    asyncio.run(main())


def test_asyncio_leaves_no_tasks_and_connections(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey, client_name=NAME) as client:
            lock = AsyncLock("job", client=client)
            for _ in range(5):

                async def work():
                    for _ in range(10):
                        async with lock:
                            pass
                    assert await lock.acquire(timeout=0.0) in {True, False}
                    if lock.token:
                        await lock.release()

                await asyncio.gather(*(work() for _ in range(20)))
                await asyncio.sleep(0)
                assert not other_tasks()
                assert connections(r) <= 17
            await lock.close()
        await happened(lambda: connections(r) == 0)
        assert is_free(r, lock)

    asyncio.run(main())


def test_asyncio_rides_over_killed_connections(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey, client_name=NAME) as client:
            lock, done = AsyncLock("job", client=client), []

            async def work(number):
                async with lock:
                    await asyncio.sleep(0.005)
                    done.append(number)

            tasks = [asyncio.create_task(work(number)) for number in range(20)]
            while len(done) < 20:
                r.client_kill_filter(_type="pubsub")
                await asyncio.sleep(0.02)
            await asyncio.gather(*tasks)
            assert sorted(done) == list(range(20))
            await lock.close()

    asyncio.run(main())


class Listing:
    """A watcher that renews nothing and lists when it is to, and until when holds live."""

    def __init__(self):
        self.watches = []

    def add(self, hold, _session, _runtime):
        self.watches.append((hold.renew_at - hold.since, hold.deadline - hold.since))

    def remove(self, hold):
        pass


def test_a_hold_that_was_waited_for_gets_its_whole_lease_within_a_moment(r):
    holder, waiter, listing = Lock("job", client=r), Lock("job", client=r, ttl=30), Listing()
    waiter._session.attach(waiter._runtime, listing)
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    wait_until(lambda: queue_of(r, holder) == 1, LONG)
    holder.release()
    thread.join(LONG)
    [(first_renewal, lease)] = listing.watches
    assert lease < 6
    # Not sooner, or the watchdog is woken for each of many short holds.
    assert first_renewal == pytest.approx(0.1)
    r.delete(waiter.key)
    waiter.acquire()
    first_renewal, lease = listing.watches[-1]
    assert lease > 20, (
        "who is answered at once has the whole lease, and is renewed at a third of it"
    )
    assert 6 < first_renewal <= 10


def test_the_whole_lease_comes_with_the_first_renewal(r):
    events = []
    holder = Lock("job", client=r)
    waiter = Lock("job", client=r, ttl=600, observer=events.append, thread_local=False)
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    wait_until(lambda: queue_of(r, holder) == 1, LONG)
    holder.release()
    thread.join(LONG)
    wait_until(lambda: [event.kind for event in events] == ["acquired", "renewed"], LONG)
    assert r.pttl(waiter.key) > 500_000
    assert waiter.remaining() > 500
    waiter.release()
