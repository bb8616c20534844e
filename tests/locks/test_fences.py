"""The number of a grant rises strictly, whatever becomes of the lock's key."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading

import redis
from lock_tools import LONG

from bloomlock import AsyncLock, FairLock, Lock, LockLostError, ReadWriteLock, ReentrantLock

ROUNDS = 40


def rises(fences):
    return all(one < other for one, other in itertools.pairwise(fences))


def test_across_deletions_of_the_key_and_kinds_of_locks(any_url):
    fences = []
    with redis.Redis.from_url(any_url) as r:
        rw = ReadWriteLock("job", client=r)
        kinds = [Lock("job", r), FairLock("job", r), ReentrantLock("job", r), rw.read, rw.write]
        for number in range(ROUNDS):
            lock = kinds[number % len(kinds)]
            assert lock.fence is None
            lock.acquire()
            fences.append(lock.fence)
            if number % 3 == 0:
                r.delete(lock.key)
            elif number % 3 == 1:
                lock.extend()
                assert lock.fence == fences[-1]
            with contextlib.suppress(LockLostError):
                lock.release()
    assert rises(fences)


def test_no_key_is_left_for_ever(r):
    with Lock("job", client=r, ttl=10):
        pass
    [key] = r.keys()
    assert 0 < r.pttl(key) <= 60_000


def test_across_threads_and_processes(r, valkey):
    lock = Lock("job", client=r)

    def work():
        for _ in range(ROUNDS):
            with lock:
                r.rpush("fences", lock.fence)

    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(0)
        children.append(child)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()

    async def main():
        other = AsyncLock("job", client=valkey)
        for _ in range(ROUNDS):
            async with other:
                r.rpush("fences", other.fence)
        await other.close()

    asyncio.run(main())
    for thread in threads:
        thread.join(LONG)
    for child in children:
        os.waitpid(child, 0)
    fences = [int(fence) for fence in r.lrange("fences", 0, -1)]
    assert len(fences) == 5 * ROUNDS
    assert rises(fences)


def test_readers_of_one_moment_have_different_ones(r):
    lock, fences, together = ReadWriteLock("job", client=r), [], threading.Barrier(5)

    def work():
        with lock.read:
            together.wait(LONG)
            fences.append(lock.read.fence)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(set(fences)) == 5
