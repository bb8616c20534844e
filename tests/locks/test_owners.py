"""To which thread or task a hold belongs, and what becomes of it when that has ended."""

from __future__ import annotations

import _thread
import asyncio
import threading

import pytest
import redis.asyncio
from contract.lock_backends import TTL
from lock_tools import happened, is_free
from people import Person, is_lost
from servers import wait_until

from bloomlock import AsyncLock, Lock, ReadWriteLock, ReentrantLock
from bloomlock.errors import LockError, LockLostError, LockNotOwnedError


async def refused(release):
    with pytest.raises(LockNotOwnedError):
        await release()


def test_asyncio_a_hold_that_another_task_acquired_belongs_to_who_called(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, TTL)
            for acquire in (
                lambda: asyncio.wait_for(lock.acquire(), TTL),
                lambda: asyncio.create_task(lock.acquire()),
                lambda: asyncio.gather(lock.acquire()),
                lock.acquire,
            ):
                await acquire()
                await asyncio.create_task(refused(lock.release))
                lock.check()
                assert await asyncio.wait_for(lock.owned(), TTL)
                await asyncio.wait_for(lock.extend(), TTL)
                await asyncio.wait_for(lock.release(), TTL)
                assert is_free(r, lock)

    asyncio.run(main())


def test_asyncio_the_hold_is_lost_when_who_called_has_ended_too(r, valkey, clock):
    async def main():
        told = []
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, TTL, on_lost=told.append)

            async def call():
                await asyncio.create_task(lock.acquire())

            await asyncio.create_task(call())
            await refused(lock.release)
            clock.advance(0.4 * TTL)
            await happened(lambda: told == [lock])

    asyncio.run(main())


@pytest.mark.usefixtures("clock")
def test_asyncio_a_hold_ends_with_its_loop(r, valkey, caplog):
    lock = AsyncLock("job", valkey, TTL)

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
    wait_until(lambda: "lock 'job' was dropped while held" in caplog.text)
    asyncio.run(take_again())


def test_a_hold_is_not_that_of_the_next_thread_with_the_same_number(r):
    lock, seen = Lock("job", client=r, ttl=TTL), []

    def look():
        seen.append((threading.get_ident(), lock.token))

    first = Person()
    first(lock.acquire)
    number = first(threading.get_ident)
    first.end()
    for _ in range(100):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        if seen[-1][0] == number:
            break
    assert {token for _, token in seen} == {None}
    assert number in {ident for ident, _ in seen}


def test_a_thread_that_python_did_not_start_ends_as_any_other(r, clock, caplog):
    """The threading module takes such a thread to be alive for ever."""
    told, kinds, ended = [], [], threading.Event()
    lock = Lock("job", r, TTL, on_lost=told.append, observer=lambda one: kinds.append(one.kind))

    def hold():
        lock.acquire()
        clock.advance(0.4 * TTL)
        lock.check()
        assert lock.extend()
        ended.set()

    _thread.start_new_thread(hold, ())
    assert ended.wait(TTL)
    assert lock.token is None
    while not told:
        # It may be renewed while the thread is just ending.
        before = len(kinds)
        assert before < 20
        clock.advance(0.4 * TTL)
        wait_until(lambda before=before: told or len(kinds) > before)
    wait_until(lambda: "the thread or task that held it has ended" in caplog.text)


def test_without_thread_local_the_end_of_its_owner_is_no_end_of_the_hold(world, ann, bob, clock):
    kinds = []
    lock = world.lock(thread_local=False, observer=lambda event: kinds.append(event.kind))
    ann(lock.acquire)
    ann.end()
    world._people.remove(ann)
    for count in (1, 2):
        clock.advance(0.4 * TTL)
        wait_until(lambda count=count: kinds.count("renewed") >= count)
    bob(lock.release)
    assert kinds[-1] == "released"
    assert world.is_free(lock)


def test_without_thread_local_each_grant_is_a_hold_of_its_own(r):
    lock, other = ReadWriteLock("job", r, TTL, thread_local=False), Person()
    lock.read.acquire()
    assert other(lock.read.acquire) is True
    assert lock.read.token != other(lambda: lock.read.token)
    lock.read.release()
    lock.read.check()
    assert ReadWriteLock("job", r).write.acquire(blocking=False) is False
    lock.read.release()
    assert is_free(r, lock.read)
    with pytest.raises(LockNotOwnedError):
        lock.read.release()
    other.end()


@pytest.mark.parametrize("renew", [True, False])
def test_who_takes_a_lock_whose_key_is_gone_ends_the_hold_before(r, renew):
    told, other = [], Person()
    lock = Lock("job", r, TTL, renew=renew, thread_local=False, on_lost=told.append)
    lock.acquire()
    lost = lock.lost
    r.delete(lock.key)
    assert other(lock.acquire, timeout=TTL) is True
    assert other(is_lost, lock) is False
    assert lost.is_set()
    wait_until(lambda: told == [lock])
    with pytest.raises(LockLostError, match="granted again"):
        lock.release()
    lock.check()
    lock.release()
    assert is_free(r, lock)
    other.end()


def test_a_reentrant_lock_that_was_lost_is_not_acquired_again_before_its_release(r):
    lock = ReentrantLock("job", client=r, renew=False)
    lock.acquire()
    r.delete(lock.key)
    with pytest.raises(LockLostError):
        lock.extend()
    for method in (lock.acquire, lock.release):
        with pytest.raises(LockLostError):
            method()
    with lock:
        pass


def test_who_holds_one_side_and_waits_for_the_other_is_told(r):
    lock, other = ReadWriteLock("job", client=r), Person()
    for held, wanted in ((lock.read, lock.write), (lock.write, lock.read)):
        with held:
            with pytest.raises(LockError, match="'job' is held .* by this very thread"):
                wanted.acquire(timeout=1)
            assert wanted.acquire(blocking=False) is False
            assert other(wanted.acquire, timeout=0.01) is False
    assert is_free(r, lock.read)
    other.end()
