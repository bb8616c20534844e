"""A hold belongs to a thread or a task; where that has ended the lock is lost, and loudly."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis.asyncio
from lock_tools import LONG, happened, is_free
from servers import wait_until

from bloomlock import AsyncLock, AsyncReadWriteLock, Lock, LockNotOwnedError, ReadWriteLock

pytestmark = pytest.mark.usefixtures("often")

ENDED = "was lost: the thread or task that held it has ended"


async def take_and_die(lock):
    """Hold a lock and end without giving it back."""
    await lock.acquire()
    raise ValueError


async def end(work):
    """Let a task of its own come to its end, whatever that is."""
    await asyncio.wait([asyncio.create_task(work)])


async def refused(release):
    with pytest.raises(LockNotOwnedError):
        await release()


@pytest.mark.parametrize("number", [1, 2])
def test_asyncio_a_task_that_died_holding_has_lost_the_lock(r, valkey, number, caplog):
    async def main():
        told, kinds = [], []
        async with redis.asyncio.Redis.from_url(valkey) as client:
            # Two holds of one object: readers share the lock.
            lock = AsyncReadWriteLock(
                "job", client, LONG, on_lost=told.append, observer=lambda e: kinds.append(e.kind)
            ).read
            for _ in range(number):
                await end(take_and_die(lock))
            await refused(lock.release)
            await asyncio.create_task(refused(lock.release))
            await happened(lambda: len(told) == number)
            assert caplog.text.count(ENDED) == number
            assert kinds.count("lost") == number
            assert "released" not in kinds
            # Left to expire: the work may go on elsewhere.
            assert r.exists(lock.key)
            r.delete(lock.key, f"{lock.key}:holders")
            renewed = kinds.count("renewed")
            async with lock:
                await happened(lambda: kinds.count("renewed") >= renewed + 2)
                assert len(lock._session.holdings.tokens()) == 1
            assert is_free(r, lock)

    asyncio.run(main())


def test_asyncio_a_hold_that_another_task_acquired_belongs_to_who_called(r, valkey):
    async def main():
        renewed = []
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, LONG, observer=lambda e: renewed.append(e.kind))
            for acquire in (
                lambda: asyncio.wait_for(lock.acquire(), LONG),
                lambda: asyncio.create_task(lock.acquire()),
                lambda: asyncio.gather(lock.acquire()),
                lock.acquire,
            ):
                await acquire()
                before = renewed.count("renewed")
                await happened(lambda before=before: renewed.count("renewed") >= before + 2)
                await asyncio.create_task(refused(lock.release))
                lock.check()
                assert await asyncio.wait_for(lock.owned(), LONG)
                await asyncio.wait_for(lock.extend(), LONG)
                await asyncio.wait_for(lock.release(), LONG)
                assert is_free(r, lock)
            assert "lost" not in renewed

    asyncio.run(main())


def test_asyncio_each_of_two_callers_gives_back_its_own(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncReadWriteLock("job", client, LONG).read
            both = asyncio.Barrier(2)

            async def work():
                await asyncio.create_task(lock.acquire())
                await both.wait()
                token = lock.token
                await both.wait()
                await lock.release()
                return token

            async with asyncio.timeout(LONG):
                tokens = await asyncio.gather(work(), work())
            assert len(set(tokens)) == 2
            assert is_free(r, lock)

    asyncio.run(main())


def test_asyncio_the_hold_is_lost_when_who_called_has_ended_too(r, valkey, caplog):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, LONG)

            async def call():
                await asyncio.create_task(lock.acquire())

            await end(call())
            await refused(lock.release)
            await happened(lambda: ENDED in caplog.text)

    asyncio.run(main())


def test_asyncio_without_thread_local_the_end_of_a_task_is_no_end_of_the_hold(r, valkey):
    async def main():
        kinds = []
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock(
                "job", client, LONG, thread_local=False, observer=lambda e: kinds.append(e.kind)
            )
            await end(take_and_die(lock))
            await happened(lambda: kinds.count("renewed") >= 2)
            await asyncio.create_task(lock.release())
            assert kinds[-1] == "released"
        assert is_free(r, lock)

    asyncio.run(main())


def test_asyncio_a_hold_ends_with_its_loop(r, valkey):
    lock = AsyncLock("job", valkey, LONG)

    async def take():
        assert await lock.acquire(blocking=False)
        await lock.close()

    async def take_again():
        assert lock.token is None
        await refused(lock.release)
        r.delete(lock.key)
        await take()
        await lock.release()
        await lock.close()

    asyncio.run(take())
    asyncio.run(take_again())


@pytest.mark.parametrize("number", [1, 2])
def test_a_thread_that_died_holding_has_lost_the_lock(r, number, caplog):
    told = []
    lock = ReadWriteLock("job", r, LONG, on_lost=told.append).read
    for _ in range(number):
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    wait_until(lambda: len(told) == number, LONG)
    assert caplog.text.count(ENDED) == number
    assert r.exists(lock.key)
    wait_until(lambda: not lock._session.holdings.tokens(), LONG)
    # Neither renewed nor waited for any more than a lease.
    r.delete(lock.key, f"{lock.key}:holders")
    with Lock("job", r, LONG) as writer:
        writer.check()
