"""KeyboardInterrupt and cancellation leave nothing behind, at every point where they may come."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import pytest
import redis
import redis.asyncio
from contract.lock_backends import TTL
from interrupting import InterruptedAt, was_in_acquire
from lock_tools import CancelledAt, happened, in_use, is_free, other_tasks, queue_of
from people import Person
from proxy import Proxy
from servers import wait_until

from bloomlock import AsyncLock, AsyncReadWriteLock, Lock
from bloomlock.runtime._async.driver import AsyncDriver
from bloomlock.runtime._async.exchange import MOST_AT_ONCE

MOST = 5000
"""More points than there are."""
LATE = pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
EVERY = 3
"""Of the points of a wait every third: those between are of the same calls."""


def acquire_interrupted(lock, number):
    """Return whether it was interrupted; a hold then is left only if acquire had ended."""
    try:
        with InterruptedAt(number) as point:
            lock.acquire()
    except KeyboardInterrupt as error:
        assert (lock.token is None) == was_in_acquire(error)
        return True
    return point.left < 0


def settle(r, lock):
    """Let go what is held; what the interrupted call left is given back in the background."""
    if lock.token is not None:
        lock.release()
    wait_until(lambda: is_free(r, lock), TTL / 2)


def test_keyboard_interrupt_of_a_free_lock(r, valkey):
    events = []
    with redis.Redis.from_url(valkey) as client:
        for number in range(MOST):
            lock = Lock("job", client, TTL, observer=events.append)
            interrupted = acquire_interrupted(lock, number)
            settle(r, lock)
            events.clear()
            with lock:
                pass
            # What is reported while the interrupt comes may be left out; nothing that follows is.
            assert [event.kind for event in events[-2:]] == ["acquired", "released"], number
            if not interrupted:
                assert number > 50
                return
    raise AssertionError


def test_keyboard_interrupt_of_a_lock_that_is_handed_over(r, valkey):
    with redis.Redis.from_url(valkey) as client:
        other = Person()
        for number in range(0, MOST, EVERY):
            lock, holder, ended = Lock("job", client, TTL), Lock("job", r, TTL), threading.Event()
            other(holder.acquire)

            def let_go(holder=holder, ended=ended):
                wait_until(lambda: queue_of(r, holder) or ended.is_set())
                holder.release()

            letting = other.start(let_go)
            interrupted = acquire_interrupted(lock, number)
            ended.set()
            letting.result(TTL)
            settle(r, lock)
            if not interrupted:
                assert number > 100
                other.end()
                return
    raise AssertionError


@pytest.mark.usefixtures("interruptible")
def test_a_signal_takes_a_waiter_out_of_the_queue(valkey, r):
    other, main = Person(), threading.get_ident()
    holder, waiter = Lock("job", r, TTL, thread_local=False), Lock("job", valkey, TTL)
    holder.acquire()

    def interrupt():
        wait_until(lambda: queue_of(r, holder) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = other.start(interrupt)
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire()
    interrupting.result(TTL)
    wait_until(lambda: queue_of(r, holder) == 0)
    holder.release()
    with waiter:
        assert waiter.owned()
    waiter.close()
    other.end()


# -- asyncio -------------------------------------------------------------------------------------


async def cancelled(work, number, *, late):
    """Await with a cancellation; tell whether it came, and the result (None: cancelled)."""
    awaited = CancelledAt(work, number, late=late)

    async def wait():
        return await awaited

    task = asyncio.create_task(wait())
    await asyncio.wait([task])
    return awaited.reached, None if task.cancelled() else task.result()


async def check_settled(client, r, lock):
    # What a slow server has not answered goes on behind.
    await happened(lambda: not in_use(client) and not other_tasks())
    assert is_free(r, lock)
    assert AsyncDriver.of(client)._bounds[""]._value == MOST_AT_ONCE


def at_every_suspension(one, least):
    """Cancel at each suspension of a call, until it has no more; `one` tells whether it had."""

    async def main():
        for number in range(MOST):
            if not await one(number):
                assert number >= least
                return
        raise AssertionError

    asyncio.run(main())


@LATE
@pytest.mark.parametrize("overtaken", [False, True], ids=["", "overtaken"])
def test_cancelled_acquire_of_a_free_lock(r, valkey, late, overtaken):
    """Also in a network where what is sent later, on another connection, arrives first."""

    async def one(number):
        delays = iter((0.06, 0.04, 0.02) if overtaken else ())

        def hold_up(name, _number):
            if name in ("EVAL", "EVALSHA"):
                time.sleep(next(delays, 0.0))
            return "pass"

        with Proxy(valkey, hold_up) as proxy:
            async with redis.asyncio.Redis.from_url(proxy.url) as client:
                lock = AsyncLock("job", client, TTL)
                reached, got = await cancelled(lock.acquire(), number, late=late)
                if got:
                    await lock.release()
                await happened(lambda: not proxy.under_way)
                await check_settled(client, r, lock)
                assert await lock.acquire(blocking=False)
                await lock.release()
        return reached

    at_every_suspension(one, 2)


@LATE
@pytest.mark.parametrize("side", ["write", "read"])
def test_cancelled_acquire_of_a_lock_that_is_handed_over(r, valkey, side, late):
    """The holder lets go as soon as the waiter stands in the queue, so it may be granted it."""

    async def one(number):
        async with (
            redis.asyncio.Redis.from_url(valkey) as client,
            redis.asyncio.Redis.from_url(valkey) as other,
        ):
            holder = AsyncLock("job", client, TTL)
            both = AsyncReadWriteLock("job", other, TTL)
            waiter = getattr(both, side)
            await holder.acquire()
            waiting = asyncio.create_task(cancelled(waiter.acquire(), number, late=late))
            await happened(lambda: waiting.done() or queue_of(r, waiter))
            await holder.release()
            reached, got = await waiting
            if got:
                await waiter.release()
            await check_settled(other, r, waiter)
            await both.close()
        return reached

    at_every_suspension(one, 4)


@LATE
def test_cancelled_release_gives_the_lock_back_all_the_same(r, valkey, late):
    async def one(number):
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, TTL, thread_local=False)
            await lock.acquire()
            # It has to connect first, so it may be cancelled before anything is sent.
            await client.connection_pool.disconnect()
            reached, _ = await cancelled(lock.release(), number, late=late)
            assert lock.token is None
            await check_settled(client, r, lock)
        return reached

    at_every_suspension(one, 1)


def test_a_cancellation_that_was_swallowed_on_the_way_is_one(r, valkey):
    """As asyncio.wait_for swallows one before Python 3.12, under redis-py's sending."""

    class Swallowing(redis.asyncio.UnixDomainSocketConnection):
        async def send_packed_command(self, *arguments, **options):
            await super().send_packed_command(*arguments, **options)
            if not sent.done():
                sent.set_result(None)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()

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
            await asyncio.wait([task])
            assert task.cancelled()
            await happened(lambda: queue_of(r, holder) == 0)
            await holder.release()
            assert is_free(r, holder)
        await pool.aclose()

    sent: asyncio.Future[None]
    asyncio.run(main())


def test_so_it_is_while_the_client_of_a_url_is_made(r, valkey, monkeypatch):
    send = redis.asyncio.UnixDomainSocketConnection.send_packed_command

    async def swallow(self, *arguments, **options):
        await send(self, *arguments, **options)
        if not sent.done():
            sent.set_result(None)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()

    async def main():
        nonlocal sent
        sent = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(AsyncLock("job", valkey).acquire())
        await sent
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert is_free(r, AsyncLock("job", r))

    sent: asyncio.Future[None]
    monkeypatch.setattr(redis.asyncio.UnixDomainSocketConnection, "send_packed_command", swallow)
    asyncio.run(main())
