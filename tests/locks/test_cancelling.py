"""A cancelled acquire leaves neither a hold nor a place in the queue, wherever it was."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import redis
import redis.asyncio
from lock_tools import (
    LONG,
    CancelledAt,
    OvertakingProxy,
    happened,
    is_free,
    other_tasks,
    queue_of,
)

from bloomlock import AsyncLock, AsyncReadWriteLock
from bloomlock.runtime.connections import MOST_AT_ONCE
from bloomlock.runtime.tasks import tasks_for

MOST = 200
LATE = pytest.mark.parametrize("late", [False, True], ids=["early", "late"])


async def cancelled(work, number, *, late):
    """Await with a cancellation; tell whether it came, and the result (None: cancelled)."""
    awaited = CancelledAt(work, number, late=late)

    async def wait():
        return await awaited

    task = asyncio.create_task(wait())
    await asyncio.wait([task], timeout=LONG)
    return awaited.reached, None if task.cancelled() else task.result()


async def check_settled(client, r, lock):
    pool = client.connection_pool
    # What a slow server has not answered goes on behind.
    await happened(lambda: not pool._in_use_connections and not other_tasks())
    assert is_free(r, lock)
    assert tasks_for(client)._bounds.of(pool)._value == MOST_AT_ONCE


@LATE
def test_of_a_free_lock(any_url, late):
    async def one(r, number):
        async with redis.asyncio.Redis.from_url(any_url) as client:
            lock = AsyncLock("job", client=client)
            reached, got = await cancelled(lock.acquire(), number, late=late)
            if got:
                assert r.get(lock.key)
                await lock.release()
            await check_settled(client, r, lock)
            assert await lock.acquire(blocking=False)
            await lock.release()
        return reached, got

    async def main():
        with redis.Redis.from_url(any_url) as r:
            for number in range(MOST):
                reached, got = await one(r, number)
                if not reached:
                    assert got
                    return number
        raise AssertionError

    assert asyncio.run(main()) > 2


@LATE
@pytest.mark.parametrize("side", ["exclusive", "read"])
def test_of_a_lock_that_is_held_and_then_handed_over(any_url, side, late):
    """The holder lets go as soon as the waiter stands in the queue, so it may be granted it."""

    def make(client):
        lock = AsyncReadWriteLock("job", client=client)
        return lock.write, (lock.write if side == "exclusive" else lock.read)

    async def one(r, client, other, number):
        holder, _ = make(client)
        _, waiter = make(other)
        await holder.acquire()
        waiting = asyncio.create_task(cancelled(waiter.acquire(), number, late=late))
        await happened(lambda: waiting.done() or queue_of(r, waiter))
        await holder.release()
        reached, got = await waiting
        if got:
            await waiter.release()
        await check_settled(other, r, waiter)
        return reached, got

    async def main():
        with redis.Redis.from_url(any_url) as r:
            for number in range(MOST):
                async with (
                    redis.asyncio.Redis.from_url(any_url) as client,
                    redis.asyncio.Redis.from_url(any_url) as other,
                ):
                    reached, got = await one(r, client, other, number)
                    await asyncio.gather(*(lock.close() for lock in make(other)))
                if not reached:
                    assert got
                    return number
        raise AssertionError

    assert asyncio.run(main()) > 4


@LATE
def test_of_a_release_gives_the_lock_back_all_the_same(any_url, late):
    async def main():
        with redis.Redis.from_url(any_url) as r:
            for number in range(MOST):
                async with redis.asyncio.Redis.from_url(any_url) as client:
                    lock = AsyncLock("job", client=client, thread_local=False)
                    await lock.acquire()
                    reached, _ = await cancelled(lock.release(), number, late=late)
                    assert lock.token is None
                    await check_settled(client, r, lock)
                if not reached:
                    return number
        raise AssertionError

    assert asyncio.run(main()) > 0


@LATE
def test_in_a_network_where_the_second_message_arrives_first(r, valkey, late):
    async def one(number):
        with OvertakingProxy(valkey) as proxy:
            async with redis.asyncio.Redis.from_url(proxy.url) as client:
                lock = AsyncLock("job", client=client)
                reached, got = await cancelled(lock.acquire(), number, late=late)
                if got:
                    await lock.release()
                await happened(lambda: not proxy.under_way)
                await check_settled(client, r, lock)
        return reached

    async def main():
        for number in range(MOST):
            if not await one(number):
                return number
        raise AssertionError

    assert asyncio.run(main()) > 2


def test_while_waiting_for_long_leaves_the_queue_to_the_next(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            holder = AsyncLock("job", client=client)
            await holder.acquire()
            waiters = [asyncio.create_task(AsyncLock("job", client).acquire()) for _ in range(20)]
            await happened(lambda: queue_of(r, holder) == 20)
            for waiter in waiters[:-1]:
                waiter.cancel()
            await asyncio.wait(waiters[:-1])
            # What a slow server has not answered goes on behind.
            await happened(lambda: queue_of(r, holder) == 1)
            await holder.release()
            assert await waiters[-1]

    asyncio.run(main())


def test_a_cancellation_that_was_swallowed_on_the_way_is_one(r, valkey):
    """As asyncio.wait_for swallows one before Python 3.12, under redis-py's sending."""

    class Swallowing(redis.asyncio.UnixDomainSocketConnection):
        async def send_packed_command(self, *arguments, **options):
            await super().send_packed_command(*arguments, **options)
            if not sent.done():
                sent.set_result(None)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(LONG)

    async def main():
        nonlocal sent
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        path = redis.asyncio.Redis.from_url(valkey).connection_pool.connection_kwargs["path"]
        pool = redis.asyncio.ConnectionPool(connection_class=Swallowing, path=path)
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            holder, waiter = AsyncLock("job", client), AsyncLock("job", client)
            await holder.acquire()
            sent = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(waiter.acquire())
            await sent
            task.cancel()
            await asyncio.wait([task], timeout=LONG)
            assert task.cancelled()
            await happened(lambda: queue_of(r, holder) == 0)
            await holder.release()
            assert is_free(r, holder)
        await pool.aclose()

    sent: asyncio.Future[None]
    asyncio.run(main())


def test_by_wait_for_and_timeout(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            holder, waiter = AsyncLock("job", client), AsyncLock("job", client)
            await holder.acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiter.acquire(), 0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), waiter:
                    raise AssertionError
            await happened(lambda: queue_of(r, holder) == 0)
            await holder.release()
            assert await asyncio.wait_for(waiter.acquire(), LONG)
            assert await waiter.owned()
            await waiter.release()
            async with waiter:
                pass
            assert is_free(r, waiter)

    asyncio.run(main())
