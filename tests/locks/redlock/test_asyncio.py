"""The asyncio twin."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis.asyncio
from lock_tools import happened
from servers import wait_until
from several import LONG, QUICK

from bloomlock import (
    AsyncRedlock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    QuorumError,
)


def run(main):
    async def bounded():
        return await asyncio.wait_for(main, LONG)

    return asyncio.run(bounded())


def others():
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("bloomlock")]


async def nothing_left():
    async with asyncio.timeout(LONG):
        while others():  # noqa: ASYNC110 - whatever it waits for has no event
            await asyncio.sleep(0.01)


def test_its_face(three):
    async def main():
        lock, other = three.async_lock(), three.async_lock()
        assert await lock.acquire()
        assert lock.fence is None
        assert await lock.locked()
        assert await lock.owned()
        assert lock.remaining() > 0
        lock.check()
        assert not await other.acquire(blocking=False)
        assert not await other.acquire(timeout=0.1)
        with pytest.raises(LockError, match="would wait for itself"):
            await lock.acquire()
        await lock.extend(50)
        assert lock.remaining() > 40
        await lock.release()
        with pytest.raises(LockNotOwnedError):
            await lock.release()
        await happened(lambda: three.held(lock.key) == 0)
        async with other:
            assert not await lock.owned()
            with pytest.raises(LockTimeoutError):
                async with three.async_lock(blocking=False):
                    pytest.fail("two holders")
        await lock.close()
        await other.close()
        assert not others()

    run(main())


@pytest.mark.parametrize("dead", [[], [0], [1, 2]])
def test_each_turn_counts(five, dead):
    for index in dead:
        five.servers[index].kill()
    count = 0

    async def turn():
        nonlocal count
        lock = five.async_lock(pauses=(0.001, 0.02))
        for _ in range(5):
            async with lock:
                seen = count
                await asyncio.sleep(0)
                count = seen + 1
        await lock.close()

    async def main():
        await asyncio.gather(*(turn() for _ in range(8)))

    run(main())
    assert count == 8 * 5
    wait_until(lambda: five.held(five.lock().key) == 0)


def test_without_a_majority(three):
    three.servers[0].kill()
    three.stop(1)

    async def main():
        lock = three.async_lock(server_timeout=QUICK)
        with pytest.raises(QuorumError, match=r"1 of 3 .*clients\[0\].*clients\[1\]: no answer"):
            await lock.acquire(blocking=False)
        await happened(lambda: three.held(lock.key) == 0)
        three.resume()
        await nothing_left()
        await happened(lambda: three.held(lock.key) == 0)
        await lock.close()

    run(main())


def test_a_silent_server_is_told_when_it_answers(three):
    three.stop(2)

    async def main():
        lock = three.async_lock()
        async with lock:
            assert three.tokens(lock.key) == [lock.token, lock.token, None]
        three.resume()
        await nothing_left()
        await happened(lambda: three.held(lock.key) == 0)
        await lock.close()

    run(main())


def test_closing_ends_what_waits_for_a_silent_server(three):
    three.stop(2)

    async def main():
        clients = [redis.asyncio.Redis.from_url(url, socket_timeout=None) for url in three.urls]
        lock = AsyncRedlock("job", clients=clients, ttl=3600, longest_ttl=0, server_timeout=0.1)
        async with lock:
            pass
        assert others()
        await lock.close()
        assert not others()

    run(main())


@pytest.mark.usefixtures("often")
def test_it_is_renewed_and_its_loss_is_told(three):
    async def main():
        told = asyncio.Event()
        lock = three.async_lock(ttl=LONG, on_lost=lambda _: told.set())
        await lock.acquire()
        await lock.extend()
        for client in three.clients:
            client.pexpire(lock.key, 30_000)
        await happened(lambda: min(c.pttl(lock.key) for c in three.clients) > 30_000)
        assert await lock.owned()
        for client in three.clients[:2]:
            client.delete(lock.key)
        await told.wait()
        with pytest.raises(LockLostError):
            await lock.release()
        await nothing_left()
        await happened(lambda: three.held(lock.key) == 0)
        await lock.close()

    run(main())


@pytest.mark.parametrize("busy", [False, True])
def test_cancelled_anywhere(three, busy, seed):
    rng = random.Random(seed)
    holder = three.lock()
    if busy:
        holder.acquire()
        wait_until(lambda: three.held(holder.key) == 3)

    async def main():
        lock = three.async_lock(thread_local=False)
        for steps in range(40):
            task = asyncio.create_task(lock.acquire())
            if steps % 2:
                await asyncio.sleep(rng.uniform(0, 0.004))
            else:
                for _ in range(steps):
                    await asyncio.sleep(0)
            task.cancel()
            try:
                assert await task
                await lock.release()
            except asyncio.CancelledError:
                pass
            assert lock.token is None
            await happened(lambda: three.tokens(lock.key) == [holder.token] * 3)
        await lock.close()
        assert not others()

    run(main())
    if busy:
        holder.release()
