"""A majority of the servers decides: of all that were named, whether they answer or not."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
import redis
import redis.asyncio
from interrupting import InterruptedAt
from lock_tools import happened, other_tasks
from proxy import Proxy
from servers import wait_until
from several import LONG, QUICK

from bloomlock import AsyncRedlock, Redlock
from bloomlock.errors import LockLostError, QuorumError
from bloomlock.runtime import background

OTHERS = "somebody else's"


@pytest.fixture
def all_done(monkeypatch):
    """Wait until the threads that ask servers for this test have nothing to do, and end."""
    monkeypatch.setattr(background, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(background, "WORKERS", background.Workers())
    before = set(threading.enumerate())

    def wait():
        now = lambda: set(threading.enumerate()) - before  # noqa: E731
        wait_until(lambda: not any(thread.name == "bloomlock-worker" for thread in now()))

    return wait


def take(several, lock, indexes):
    """Let somebody else have the lock on some of the servers."""
    for index in indexes:
        several.clients[index].set(lock.key, OTHERS, px=600_000)


@pytest.mark.parametrize(("dead", "silent"), [([1], []), ([], [0])])
def test_a_minority_may_be_dead_or_silent(three, dead, silent):
    for index in dead:
        three.servers[index].kill()
    for index in silent:
        three.stop(index)
    first, second = three.lock(), three.lock()
    with first:
        assert not second.acquire(blocking=False)
        assert first.owned()
        assert second.locked()
        first.extend()
    with second:
        assert second.owned()
    wait_until(lambda: three.held(first.key) == 0)


def test_more_than_a_minority_may_not(three):
    """One of three grants it and nobody refuses: that is all who are alive, and not enough."""
    for index in (1, 2):
        three.servers[index].kill()
    lock = three.lock(ttl=5)
    with pytest.raises(QuorumError, match=r"1 of 3 servers answered .* 2 are needed; .*clients\[2"):
        lock.acquire(blocking=False)
    for refused in (lambda: lock.acquire(timeout=0.05), lock.locked):
        with pytest.raises(QuorumError):
            refused()
    wait_until(lambda: three.held(lock.key) == 0)


@pytest.mark.parametrize(
    ("gone", "is_lost"), [((0, 1), True), ((2,), False)], ids=["majority", "minority"]
)
def test_what_is_lost_on_a_majority_is_lost_and_nothing_is_won_back(three, clock, gone, is_lost):
    """A renewal extends what is there; it never takes the lock anew."""
    events, told = [], []
    lock = three.lock(observer=events.append, on_lost=told.append)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 3)
    for index in gone:
        three.clients[index].delete(lock.key)
    clock.advance(0.4 * lock.ttl)
    wait_until(lambda: len(events) == 2)
    assert events[-1].kind == ("lost" if is_lost else "renewed")
    assert three.held(lock.key) <= 3 - len(gone)
    if is_lost:
        wait_until(lambda: told == [lock])
        with pytest.raises(LockLostError):
            lock.release()
    else:
        lock.check()
        lock.release()


def test_a_holder_that_no_majority_answers_loses_it_by_its_own_clock(three, clock):
    told = []
    lock = three.lock(server_timeout=QUICK, on_lost=told.append)
    lock.acquire()
    for index in (0, 1):
        three.servers[index].kill()
    clock.advance(0.5 * lock.ttl)
    lock.check()
    with pytest.raises(QuorumError):
        lock.extend(5)
    assert 0 < lock.remaining() < 5, "either lease may be in force"
    clock.advance(lock.ttl)
    wait_until(lambda: told == [lock])
    with pytest.raises(LockLostError):
        lock.release()


def test_a_late_vote_is_one_by_the_next_renewal(three):
    three.stop(2)
    lock = three.lock()
    lock.acquire()
    three.resume()
    wait_until(lambda: three.held(lock.key) == 3)
    three.servers[0].kill()
    lock.extend()
    assert lock.owned()
    lock.release()
    wait_until(lambda: three.held(lock.key) == 0)


def test_a_server_whose_replies_were_lost_is_told_of_the_release(three):
    with three.lock() as first:  # from now on each server has the scripts
        wait_until(lambda: three.held(first.key) == 3)
    with Proxy(three.urls[0], lambda _name, _number: "after", handshake=False) as proxy:
        lock = Redlock("job", [proxy.url, *three.urls[1:]], 5 * LONG, longest_ttl=0)
        assert lock.acquire(blocking=False)
        wait_until(lambda: three.held(lock.key) == 3)
        wait_until(lambda: proxy.lost >= 3)
        proxy.judge = lambda _name, _number: "pass"
        lock.release()
        wait_until(lambda: three.held(lock.key) == 0)


@pytest.mark.parametrize("busy", [False, True])
def test_interrupted_at_some_points(three, busy, seed):
    """What the interrupted call took is given back in the background."""
    chance, holder, number = random.Random(seed), three.lock(), 0
    if busy:
        holder.acquire()
        wait_until(lambda: three.held(holder.key) == 3)
    lock = three.lock(thread_local=False)
    while True:
        try:
            with InterruptedAt(number) as point:
                got = lock.acquire(blocking=False)
        except KeyboardInterrupt:
            got = lock.token is not None
        if got and lock.token is not None:
            lock.release()
        wait_until(lambda: three.tokens(lock.key) == [holder.token] * 3)
        if point.left >= 0:
            break
        number += chance.randrange(5, 20)
    assert number > 50


@pytest.mark.parametrize("busy", [False, True])
def test_asyncio_cancelled_at_each_turn_of_the_loop(three, busy):
    holder = three.lock()
    if busy:
        holder.acquire()
        wait_until(lambda: three.held(holder.key) == 3)

    async def main():
        lock = three.async_lock(thread_local=False)
        for turns in range(30):
            task = asyncio.create_task(lock.acquire())
            for _ in range(turns):
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
        assert not other_tasks()

    asyncio.run(main())


def test_asyncio_closing_ends_what_waits_for_a_silent_server(three):
    three.stop(2)

    async def main():
        clients = [redis.asyncio.Redis.from_url(url, socket_timeout=None) for url in three.urls]
        lock = AsyncRedlock("job", clients, ttl=3600, longest_ttl=0, server_timeout=0.1)
        async with lock:
            pass
        assert other_tasks()
        await lock.close()
        assert not other_tasks()

    asyncio.run(main())


@pytest.mark.free_running
def test_each_turn_counts(three):
    """Threads write in turn, with a server dead; the count is of a fixed schedule."""
    three.servers[1].kill()
    counted = [0]

    def work():
        lock = three.lock()
        for _ in range(5):
            with lock:
                seen = counted[0]
                redis.Redis.from_url(three.urls[0]).ping()
                counted[0] = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [20]
    wait_until(lambda: three.held(three.lock().key) == 0)
