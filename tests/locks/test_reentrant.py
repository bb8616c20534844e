"""ReentrantLock: counted for each thread or task, shared only by an explicit owner."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis.asyncio
from lock_tools import LONG, is_free
from proxy import Proxy
from servers import wait_until

from bloomlock import AsyncReentrantLock, LockLostError, LockNotOwnedError, ReentrantLock


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(LONG)
    return found[0]


def test_without_thread_local_it_belongs_to_the_object(client):
    lock = ReentrantLock("job", client=client, thread_local=False)
    lock.acquire()
    assert in_thread(lambda: (lock.acquire(), lock.token)) == (True, lock.token)
    lock.release()
    assert not is_free(client, lock)
    lock.release()
    assert is_free(client, lock)


def test_as_often_released_as_acquired(client, server_url):
    with Proxy(server_url) as proxy, redis.Redis.from_url(proxy.url) as counted:
        as_often_released_as_acquired(client, ReentrantLock("job", client=counted), proxy)


def as_often_released_as_acquired(client, lock, proxy):
    for _ in range(5):
        assert lock.acquire()
    token, fence = lock.token, lock.fence
    before = len(proxy.seen)
    assert lock.acquire(blocking=False)
    assert lock.acquire(timeout=1)
    for _ in range(6):
        lock.release()
    assert len(proxy.seen) == before, "a nested hold costs no round trip"
    assert (lock.token, lock.fence) == (token, fence)
    assert in_thread(lambda: ReentrantLock("job", client=client).acquire(blocking=False)) is False
    lock.release()
    assert is_free(client, lock)
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_each_thread_counts_by_itself(r):
    lock = ReentrantLock("job", client=r)
    with lock, lock:
        assert in_thread(lambda: lock.acquire(blocking=False)) is False
        assert in_thread(lock.owned) is False
    assert in_thread(lambda: lock.acquire(blocking=False) and lock.release()) is None
    assert is_free(r, lock)


def test_two_objects_of_one_thread_are_two_holders(r):
    with ReentrantLock("job", client=r):
        assert ReentrantLock("job", client=r).acquire(blocking=False) is False


def test_a_lost_one_cannot_be_acquired_again_before_it_is_released(r):
    lock = ReentrantLock("job", client=r, ttl=0.3)
    lock.acquire()
    lost = lock.lost
    r.delete(lock.key)
    assert lost.wait(LONG)
    with pytest.raises(LockLostError):
        lock.acquire()
    with pytest.raises(LockLostError):
        lock.release()
    with lock:
        pass


def test_an_owner_shares_it_everywhere(r):
    one, two = (ReentrantLock("job", client=r, owner="tenant 7") for _ in range(2))
    stranger = ReentrantLock("job", client=r, owner="tenant 8")
    nobody = ReentrantLock("job", client=r)
    with one:
        # Past those who wait, because to wait behind them would be for ever.
        waiting = threading.Thread(target=lambda: stranger.acquire() and stranger.release())
        waiting.start()
        wait_until(lambda: r.zcard(f"{one.key}:queue") == 1)
        assert in_thread(lambda: two.acquire(timeout=LONG)) is True
        assert two.acquire()
        assert one.token != two.token
        assert nobody.acquire(blocking=False) is False
        two.release()
        assert waiting.is_alive()
        assert one.owned()
    # The hold of the first thread has not been given back; it ends by the owner's release alone.
    assert waiting.is_alive()
    r.zremrangebyrank(f"{one.key}:holders", 0, -1)
    r.delete(one.key)
    waiting.join(LONG)
    assert not waiting.is_alive()


def test_asyncio(valkey, r):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncReentrantLock("job", client=client)
            shared = [AsyncReentrantLock("other", client=client, owner="me") for _ in range(2)]
            async with lock, lock:
                assert await lock.acquire()
                assert await asyncio.create_task(lock.acquire(blocking=False)) is False
                await lock.release()
                assert await lock.owned()
            assert is_free(r, lock)
            async with shared[0], shared[1]:
                assert await shared[0].owned()
                assert await shared[1].owned()
            assert is_free(r, shared[0])

    asyncio.run(main())
