"""Holds are renewed while they are held, and neither afterwards nor for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
import redis
import redis.asyncio
from lock_tools import LONG, happened, is_free, other_tasks
from proxy import Proxy
from servers import wait_until

from bloomlock import AsyncLock, Lock, LockLostError
from bloomlock.locks import lock as lock_module
from bloomlock.locks import watchdog

TTL = 0.3
"""A lease that is to end. Holds that are to be kept have a minute, and the fixture `often`."""
MANY = 50
QUIET = 0.3
"""Long enough for several renewals, if there were any."""
OFTEN = pytest.mark.usefixtures("often")


class Seen:
    """An observer that counts."""

    def __init__(self):
        self.kinds = []

    def __call__(self, event):
        self.kinds.append(event.kind)

    def renewals(self):
        return self.kinds.count("renewed")


TOGETHER = 6.0
"""A lease with which locks that were obtained within half a second are renewed together."""
FEW = MANY // 2
"""Requests for many renewals; one for each would be twice as many, one for all is the rule."""


def watchdogs():
    return [thread for thread in threading.enumerate() if thread.name == "bloomlock-watchdog"]


def reads(r):
    """Return how many times the server read from a connection: pipelined commands are one."""
    return r.info("stats")["total_reads_processed"]


@OFTEN
def test_a_hold_is_renewed_until_it_is_released(any_url):
    seen = Seen()
    with Proxy(any_url) as proxy, redis.Redis.from_url(proxy.url) as r:
        with Lock("job", client=r, ttl=LONG, observer=seen) as lock:
            lock.extend()
            r.pexpire(lock.key, 30_000)
            wait_until(lambda: seen.renewals() >= 4, LONG)
            assert r.pttl(lock.key) > 30_000
            lock.check()
            assert lock.owned()
            assert 0 < lock.remaining() < LONG
        # A renewal that began before the release may be sent behind it.
        wait_until(
            lambda: not any(one.name == "bloomlock-renewal" for one in threading.enumerate()), LONG
        )
        renewals, before = seen.renewals(), len(proxy.seen)
        time.sleep(QUIET)
        assert len(proxy.seen) == before
        assert seen.renewals() == renewals
        assert (seen.kinds[0], seen.kinds[-1]) == ("acquired", "released")
        assert is_free(r, lock)


@pytest.mark.parametrize(
    "options", [{"renew": False}, {"max_hold": 2 * TTL}, {"max_hold": TTL / 2}]
)
def test_without_renewal_the_hold_ends_and_says_so(r, options):
    seen, told = Seen(), []
    lock = Lock("job", client=r, ttl=TTL, observer=seen, on_lost=told.append, **options)
    lock.acquire()
    lost = lock.lost
    assert lost.wait(60)
    wait_until(lambda: told == [lock])
    wait_until(lambda: is_free(r, lock))
    with pytest.raises(LockLostError, match="its lease ran out"):
        lock.check()
    with pytest.raises(LockLostError, match="its lease ran out"):
        lock.release()
    wait_until(lambda: seen.kinds.count("lost") == 1)
    if "renew" in options:
        assert not seen.renewals()


@OFTEN
def test_a_renewal_never_shortens_the_lease_behind_the_holders_back(r):
    seen = Seen()
    with Lock("job", client=r, ttl=LONG, max_hold=4 * LONG, observer=seen) as lock:
        lock.extend(6 * LONG)
        before = seen.renewals()
        wait_until(lambda: seen.renewals() >= before + 3, LONG)
        left_ms = r.pttl(lock.key)
        assert 2000 * LONG < 1000 * lock.remaining() <= left_ms


@OFTEN
def test_killed_connections_do_no_harm(r, valkey):
    seen = Seen()
    with (
        redis.Redis.from_url(valkey) as client,
        Lock("job", client=client, ttl=LONG, observer=seen) as lock,
    ):
        for _ in range(3):
            r.client_kill_filter(_type="normal", skipme=True)
            lock.extend()
            before = seen.renewals()
            wait_until(lambda before=before: seen.renewals() > before, LONG)
        assert lock.owned()
    assert "lost" not in seen.kinds


def test_many_locks_are_renewed_by_one_thread_in_few_round_trips(r):
    seen = [Seen() for _ in range(MANY)]
    locks = [Lock(f"job {n}", client=r, ttl=TOGETHER, observer=see) for n, see in enumerate(seen)]
    for lock in locks:
        lock.acquire()
    assert len(watchdogs()) == 1
    assert threading.active_count() < MANY
    before = reads(r)
    wait_until(lambda: all(see.renewals() for see in seen), LONG)
    assert reads(r) - before < FEW
    for lock in locks:
        lock.release()
    assert not r.keys("*:lock")


def test_the_thread_ends_when_it_has_nothing_to_do(r, monkeypatch):
    monkeypatch.setattr(watchdog, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "LONGEST_SLEEP", 0.01)
    # One that no other test has left something to do.
    monkeypatch.setattr(lock_module, "WATCHDOG", watchdog.Watchdog())
    before = set(watchdogs())
    for _ in range(3):
        with Lock("job", client=r):
            [thread] = set(watchdogs()) - before
        thread.join(LONG)
        assert not thread.is_alive()


@OFTEN
def test_a_lock_that_is_dropped_while_held_is_left_to_expire(r, caplog):
    lock = Lock("job", client=r, ttl=LONG)
    lock.acquire()
    lock.extend()
    key = lock.key
    del lock
    gc.collect()
    wait_until(lambda: "a lock was dropped while held" in caplog.text, LONG)
    r.pexpire(key, int(1000 * QUIET))
    wait_until(lambda: not r.exists(key), LONG)


@OFTEN
def test_a_hold_whose_thread_has_ended_is_left_to_expire(r, caplog):
    lost = threading.Event()
    lock = Lock("job", client=r, ttl=2, on_lost=lambda _: lost.set())
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    assert lost.wait(LONG)
    with lock:
        assert lock.owned()
    assert "the thread or task that held it has ended" in caplog.text


@OFTEN
def test_without_thread_local_the_end_of_a_thread_is_no_end_of_the_hold(r):
    seen = Seen()
    lock = Lock("job", client=r, ttl=LONG, thread_local=False, observer=seen)
    thread = threading.Thread(target=lambda: lock.acquire() and lock.extend())
    thread.start()
    thread.join()
    wait_until(lambda: seen.renewals() >= 4, LONG)
    lock.release()


@OFTEN
def test_asyncio_renews_until_the_release(any_url):
    async def main():
        seen = Seen()
        with Proxy(any_url) as proxy:
            client = redis.asyncio.Redis.from_url(proxy.url)
            async with AsyncLock("job", client=client, ttl=LONG, observer=seen) as lock:
                await lock.extend()
                await happened(lambda: seen.renewals() >= 4)
                lock.check()
                assert await lock.owned()
            # A renewal that began before the release may be sent behind it.
            await happened(lambda: not any("renewal" in t.get_name() for t in other_tasks()))
            renewals, before = seen.renewals(), len(proxy.seen)
            await asyncio.sleep(QUIET)
            assert len(proxy.seen) == before
            assert seen.renewals() == renewals
            assert not await lock.locked()
            await client.aclose()

    asyncio.run(main())


def test_asyncio_renews_many_locks_in_few_round_trips(r, valkey):
    async def main():
        seen = [Seen() for _ in range(MANY)]
        async with redis.asyncio.Redis.from_url(valkey) as client:
            locks = [
                AsyncLock(f"job {n}", client, TOGETHER, observer=see) for n, see in enumerate(seen)
            ]
            for lock in locks:
                await lock.acquire()
            before = reads(r)
            await happened(lambda: all(see.renewals() for see in seen))
            assert reads(r) - before < FEW
            assert threading.active_count() < MANY
            for lock in locks:
                await lock.release()
        assert not r.keys("*:lock")

    asyncio.run(main())


@OFTEN
def test_asyncio_leaves_a_dropped_lock_to_expire(r, valkey, caplog):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client=client, ttl=LONG)
            await lock.acquire()
            await lock.extend()
            key = lock.key
            del lock
            gc.collect()
            await happened(lambda: "a lock was dropped while held" in caplog.text)
            r.pexpire(key, int(1000 * QUIET))
            await happened(lambda: not r.exists(key))

    asyncio.run(main())


@OFTEN
def test_asyncio_the_end_of_a_task_that_only_acquired_is_no_end_of_the_hold(r, valkey):
    async def main():
        seen = Seen()
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client=client, ttl=LONG, observer=seen)
            await asyncio.create_task(lock.acquire())
            await happened(lambda: seen.renewals() >= 4)
            await lock.release()
        assert is_free(r, lock)

    asyncio.run(main())


@OFTEN
def test_a_lock_object_in_one_loop_after_the_other(r, valkey):
    seen = Seen()
    lock = AsyncLock("job", client=valkey, ttl=LONG, observer=seen)

    async def main():
        async with lock:
            await lock.extend()
            before = seen.renewals()
            await happened(lambda: seen.renewals() >= before + 2)
            lock.check()
        await lock.close()

    for _ in range(3):
        asyncio.run(main())
    assert is_free(r, lock)
