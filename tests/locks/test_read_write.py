"""ReadWriteLock: many readers or one writer; neither side starves."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from lock_tools import LONG, happened, is_free, queue_of
from servers import wait_until

from bloomlock import AsyncReadWriteLock, Lock, ReadWriteLock


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


def test_readers_share_and_a_writer_is_alone(any_url):
    with redis.Redis.from_url(any_url) as r:
        locks = [ReadWriteLock("job", client=r) for _ in range(3)]
        one, two, three = locks
        with one.read, two.read:
            assert one.read.owned()
            assert two.read.locked()
            assert three.write.acquire(blocking=False) is False
            assert three.write.acquire(timeout=0.05) is False
            assert three.read.acquire(blocking=False) is True
            three.read.release()
        assert is_free(r, one.read)
        with one.write:
            assert two.read.acquire(blocking=False) is False
            assert two.write.acquire(blocking=False) is False
            # The write side is the Lock of the same name.
            assert Lock("job", client=r).acquire(blocking=False) is False
        assert is_free(r, one.write)
        assert one.read.key == one.write.key == Lock("job", client=r).key


def test_each_reader_has_a_lease_of_its_own(r):
    one, two = ReadWriteLock("job", r, 0.3).read, ReadWriteLock("job", r, LONG).read
    with two:
        one.acquire()
        lost = one.lost
        r.zrem(f"{one.key}:holders", one.token)
        assert lost.wait(LONG)
        two.check()
        assert two.owned()
        assert not one.owned()
        two.extend(30)
        assert 1000 * two.remaining() < r.pttl(two.key) <= 1000 * LONG
    assert is_free(r, one)


@pytest.mark.parametrize("rounds", [3])
def test_a_waiting_writer_goes_before_later_readers_and_they_go_together(r, rounds):
    lock = ReadWriteLock("job", client=r)
    for _ in range(rounds):
        order, inside = [], threading.Barrier(3)

        def write(order=order):
            with lock.write:
                order.append("write")

        def read(order=order, inside=inside):
            with lock.read:
                # Nobody gets past this unless all of them are inside at once.
                inside.wait(LONG)
                order.append("read")

        lock.read.acquire()
        threads = [start(write)]
        wait_until(lambda: queue_of(r, lock.read) == 1)
        threads += [start(read), start(read)]
        wait_until(lambda: queue_of(r, lock.read) == 3)
        threads.append(start(write))
        wait_until(lambda: queue_of(r, lock.read) == 4)
        threads.append(start(read))
        wait_until(lambda: queue_of(r, lock.read) == 5)
        assert ReadWriteLock("job", client=r).read.acquire(blocking=False) is False
        lock.read.release()
        for thread in threads:
            thread.join(LONG)
        assert order == ["write", "read", "read", "read", "write"]
        assert is_free(r, lock.read)


def test_counts_are_exact_under_load(any_url):
    lock = ReadWriteLock("job", client=any_url)
    readers, writers, wrong, rounds = [], [], [], 15

    def read():
        for _ in range(rounds):
            with lock.read:
                readers.append(1)
                if writers:
                    wrong.append("a reader beside a writer")
                readers.pop()

    def write():
        for _ in range(rounds):
            with lock.write:
                writers.append(1)
                if readers or len(writers) != 1:
                    wrong.append("a writer is not alone")
                writers.pop()

    threads = [start(work) for work in (read, write, read, write, read)]
    for thread in threads:
        thread.join(LONG)
    assert wrong == []
    with redis.Redis.from_url(any_url) as r:
        assert is_free(r, lock.read)
    lock.close()


def test_asyncio(valkey, r):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncReadWriteLock("job", client=client)
            assert lock.name == "job"
            inside, done = asyncio.Barrier(10), []

            async def read():
                async with lock.read:
                    await inside.wait()
                    done.append("read")

            async def write():
                async with lock.write:
                    done.append("write")

            await lock.read.acquire()
            tasks = [asyncio.create_task(write())]
            await happened(lambda: queue_of(r, lock.read) == 1)
            tasks += [asyncio.create_task(read()) for _ in range(10)]
            await happened(lambda: queue_of(r, lock.read) == 11)
            await lock.read.release()
            await asyncio.gather(*tasks)
            assert done == ["write"] + ["read"] * 10
            assert is_free(r, lock.read)
            await lock.close()

    asyncio.run(main())
