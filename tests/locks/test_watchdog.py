"""Holds are renewed in few requests, whatever servers and callbacks do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time

import pytest
import redis
import redis.asyncio
from contract.lock_backends import TTL
from gate import Hold
from lock_tools import happened, is_free, other_tasks
from servers import wait_until

import bloomlock
from bloomlock import AsyncLock, Lock
from bloomlock.errors import ClaimLostError, LockError, LockLostError
from bloomlock.locks import session, watchdog

MANY = 50


def renewals(events):
    return sum(event.kind == "renewed" for event in list(events))


def is_renewed(events, clock, times=1):
    """Let the clock go on until a lock was renewed some times more."""
    for _ in range(times):
        before = renewals(events)
        clock.advance(0.4 * TTL)
        wait_until(lambda before=before: renewals(events) > before)


def test_many_locks_are_renewed_in_few_requests(world, ann, clock):
    events = [[] for _ in range(MANY)]
    locks = [world.lock(name=f"{n}", observer=told.append) for n, told in enumerate(events)]
    for lock in locks:
        ann(lock.acquire)
    assert sum(t.name == "bloomlock-watchdog" for t in threading.enumerate()) <= 1
    [r] = world.servers
    before = r.info("stats")["total_reads_processed"]
    clock.advance(0.4 * TTL)
    wait_until(lambda: all(map(renewals, events)))
    assert r.info("stats")["total_reads_processed"] - before < MANY / 2
    for lock in locks:
        ann(lock.release)
    assert not r.keys("*:lock")


def test_a_server_that_is_silent_holds_up_no_other_one(world, ann, clock):
    [proxy] = world.proxies()
    told, events = [], []
    silent = world.lock(name="silent", urls=[proxy.url], on_lost=told.append)
    other = world.lock(name="other", observer=events.append)
    ann(silent.acquire)
    ann(other.acquire)
    holding = proxy.judge = Hold(at=len(proxy.seen))
    clock.advance(0.4 * TTL)
    assert holding.reached.wait(TTL)
    is_renewed(events, clock, times=2)
    wait_until(lambda: told == [silent])
    with pytest.raises(LockLostError, match="its lease ran out before it could be renewed"):
        ann(silent.check)
    ann(other.check)
    holding.let_go()
    ann(other.release)


def test_a_renewal_that_is_under_way_changes_nothing_after_the_release(world, ann, bob, clock):
    [proxy] = world.proxies()
    events = []
    lock, rival = world.lock(urls=[proxy.url], observer=events.append), world.rival(ttl=TTL / 2)
    ann(lock.acquire)
    holding = proxy.judge = Hold(at=len(proxy.seen))
    clock.advance(0.4 * TTL)
    assert holding.reached.wait(TTL)
    ann(lock.release)
    bob(rival.acquire)
    value = world.held(lock)
    holding.let_go()
    wait_until(lambda: not proxy.under_way)
    assert world.held(lock) == value
    assert world.servers[0].pttl(lock.key) <= 500 * TTL
    bob(rival.release)
    assert [event.kind for event in events] == ["acquired", "released"]


def test_an_extension_is_not_overtaken_by_a_renewal(world, ann, clock):
    """The holder would rely on a lease that the server has shortened."""
    [proxy] = world.proxies()
    lock = world.lock(urls=[proxy.url])
    ann(lock.acquire)
    holding = proxy.judge = Hold(at=len(proxy.seen))
    clock.advance(0.4 * TTL)
    assert holding.reached.wait(TTL)
    extending = ann.start(lock.extend, 5 * TTL)
    holding.let_go()
    assert extending.result(TTL) is True
    wait_until(lambda: not proxy.under_way)
    assert 4 * TTL < ann(lock.remaining) < world.servers[0].pttl(lock.key) / 1000
    ann(lock.release)


def test_an_extension_whose_answer_does_not_come_counts_as_the_shorter_lease(world, ann):
    [proxy] = world.proxies()
    lock = world.lock(urls=[proxy.url])
    ann(lock.acquire)
    proxy.judge = lambda _name, _number: "before"
    with pytest.raises(redis.ConnectionError):
        ann(lock.extend, TTL / 4)
    assert ann(lock.remaining) <= TTL / 4
    proxy.judge = lambda _name, _number: "pass"
    ann(lock.check)
    ann(lock.release)


def test_a_lock_that_is_dropped_while_held_is_left_to_expire(world, ann, clock, caplog):
    lock = world.lock()
    key = lock.key
    ann(lock.acquire)
    world._closed.remove(lock)
    del lock
    ann(gc.collect)
    gc.collect()
    clock.advance(0.4 * TTL)
    wait_until(lambda: f"lock {key!r} was dropped while held" in caplog.text)
    assert world.servers[0].exists(key)


def test_a_full_server_takes_no_lock_from_its_holder(world, ann, bob, clock):
    events = []
    lock = world.lock(observer=events.append)
    [r] = world.servers
    readers = world.lock_class("ReadWriteLock")("shared", world._client(world.urls[0]), 10 * TTL)
    ann(lock.acquire)
    ann(readers.read.acquire)
    r.config_set("maxmemory-policy", "noeviction")
    r.config_set("maxmemory", "1")
    try:
        r.pexpire(lock.key, 10_000)
        is_renewed(events, clock, times=2)
        assert r.pttl(lock.key) > 10_000
        ann(lock.extend, 10 * TTL)
        another = world.lock_class("ReadWriteLock")("another", world._client(world.urls[0]))
        for refused in (world.lock(name="another"), another.read, readers.read):
            with pytest.raises(redis.ResponseError, match="OOM|maxmemory"):
                bob(refused.acquire)
        assert r.zcard(f"{readers.read.key}:holders") == 1
        ann(readers.read.release)
        ann(lock.release)
    finally:
        r.config_set("maxmemory", "0")
    assert world.is_free(lock)
    assert world.is_free(readers.read)


def test_the_thread_ends_when_it_has_nothing_to_do(r, monkeypatch):
    monkeypatch.setattr(watchdog, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "LONGEST_SLEEP", 0.01)
    monkeypatch.setattr(session, "WATCHDOG", watchdog.Watchdog())

    def running():
        return {t for t in threading.enumerate() if t.name == "bloomlock-watchdog"}

    before = running()
    for _ in range(2):
        with Lock("job", client=r):
            [thread] = running() - before
        wait_until(lambda thread=thread: not thread.is_alive())


# -- log lines ------------------------------------------------------------------------------------


class Handler(logging.Handler):
    """Takes a lock itself for each line, and does not come back until told."""

    def __init__(self, url):
        super().__init__()
        self.taken, self.over, self.lines = Lock("of the log", url, TTL), threading.Event(), []

    def emit(self, record):
        self.lines.append(record.getMessage())
        with self.taken:
            self.over.wait(TTL)


@pytest.fixture
def handler(valkey):
    made, logger = Handler(valkey), logging.getLogger("bloomlock")
    logger.addHandler(made)
    yield made
    logger.removeHandler(made)
    made.over.set()
    made.taken.close()


def test_a_log_handler_and_callbacks_that_block_hold_up_no_lock(world, ann, clock, handler):
    def block(what):
        if getattr(what, "kind", "") not in ("acquired", "released"):
            # In asyncio a callback must not block the loop.
            assert world.loop or handler.over.wait(TTL)
            raise ValueError

    [proxy] = world.proxies()
    events = []
    good = world.lock(name="good", observer=events.append)
    away = world.lock(name="away", urls=[proxy.url])
    wiped = world.lock(name="wiped", on_lost=block, observer=block)
    for lock in (good, away, wiped, world.lock(name="dropped")):
        ann(lock.acquire)
    world._closed.pop()
    del lock
    proxy.judge = lambda _name, _number: "before"
    world.wipe(wiped)
    ann(gc.collect)
    is_renewed(events, clock, times=2)
    wait_until(lambda: handler.lines)
    with pytest.raises(LockLostError):
        ann(wiped.release)
    ann(good.check)
    with pytest.raises(redis.ConnectionError):
        ann(away.release)
    is_renewed(events, clock, times=2)
    ann(good.release)
    assert len(handler.lines) == 1


def lines(caplog):
    """Return what was logged, but for what earlier tests have dropped."""
    return [line for line in caplog.messages if "dropped" not in line]


@pytest.fixture
def held(world, ann, clock):
    """Return a proxy and what is held through it: locks and claims, whose leases end in turn."""
    [proxy] = world.proxies()
    own = [world.lock_class("Lock")(f"own {n}", proxy.url, TTL) for n in range(10)]
    locks = [*own, *(world.lock(name=f"{n}", urls=[proxy.url], ttl=TTL) for n in range(90))]
    name = "AsyncBloomFilter" if world.loop else "BloomFilter"
    found, claims = getattr(bloomlock, name)("pages", 2000, client=proxy.url), []
    for n in range(10):
        clock.advance(0.01 * TTL)
        for lock in locks[n::10]:
            ann(lock.acquire)
        claims += ann(found.claim_many, [f"{n}/{item}" for item in range(100)], TTL)
    yield proxy, locks, claims
    proxy.judge = lambda _name, _number: "pass"
    if world.loop:
        wait_until(
            lambda: "bloomlock-renewal" not in {t.get_name() for t in ann(asyncio.all_tasks)}
        )
    # What is left would be reported in the next test.
    ann(found.abandon_many, claims)
    for lock in locks:
        with contextlib.suppress(LockError):
            ann(lock.release)
    for each in (*own, found):
        ann(each.close)


def remaining(held):
    return held.remaining() if callable(held.remaining) else held.remaining


def test_an_outage_is_one_line_for_each_server(world, ann, clock, caplog, held):
    proxy, locks, claims = held
    events = []
    ann(world.lock(name="elsewhere", observer=events.append).acquire)
    is_renewed(events, clock)
    for each in (*locks, *claims):
        wait_until(lambda each=each: ann(lambda: remaining(each)) > 0.8 * TTL)
    proxy.judge = lambda _name, _number: "before"
    clock.advance(0.4 * TTL)
    for cuts in (30, 60, 90):
        wait_until(lambda cuts=cuts: proxy.cuts["before"] >= cuts)
    assert len(lines(caplog)) == 1
    proxy.judge = lambda _name, _number: "pass"
    wait_until(lambda: "renews again" in caplog.text)
    first, last = lines(caplog)
    assert "and 1099 more could not be renewed yet: " in first
    assert f"{proxy.url.removeprefix('unix://').split('?')[0]} renews again, after " in last
    for each in (*locks, *claims):
        ann(each.check)


def test_what_an_outage_takes_is_one_line(ann, clock, caplog, held):
    proxy, locks, claims = held
    proxy.judge = lambda _name, _number: "before"
    while "nothing is left to renew at" not in caplog.text:
        clock.advance(0.02 * TTL)
        time.sleep(0.02)  # for its renewals to fail, one after the other
    first, lost, _ = lines(caplog)
    assert "and 1099 more could not be renewed yet: " in first
    assert "and 1099 more were lost: its lease ran out before it could be renewed" in lost
    for each in (*locks, *claims):
        with pytest.raises((LockLostError, ClaimLostError)):
            ann(each.check)


def test_what_a_server_forgot_in_an_outage_is_one_line(world, ann, clock, caplog, held):
    proxy, _, _ = held
    proxy.judge = lambda _name, _number: "before"
    clock.advance(0.4 * TTL)
    wait_until(lambda: proxy.cuts["before"] > 30)
    world.servers[0].flushall()
    proxy.judge = lambda _name, _number: "pass"
    wait_until(lambda: "renews again" in caplog.text)
    _, lost, _ = lines(caplog)
    assert "and 1099 more were lost: its key was gone" in lost


def test_a_jump_of_the_clock_loses_all_in_one_line(world, ann, clock, caplog):
    for n in range(MANY):
        ann(world.lock(name=f"{n}").acquire)
    clock.advance(2 * TTL)
    wait_until(lambda: "lost" in caplog.text)
    [line] = lines(caplog)
    assert f"and {MANY - 1} more were lost: " in line


# -- what observers and on_lost do --------------------------------------------------------------


@pytest.mark.parametrize("which", ["observer", "on_lost"])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_a_callback_raises_stops_no_renewal(world, ann, clock, caplog, which, error):
    def fail(what):
        if getattr(what, "kind", "") not in ("acquired", "released"):
            raise error

    events = []
    # Both are asked for in one request.
    bad = world.lock(name="bad", **{which: fail})
    good = world.lock(name="good", observer=events.append)
    ann(good.acquire)
    ann(bad.acquire)
    is_renewed(events, clock)
    world.wipe(bad)
    is_renewed(events, clock)
    wait_until(lambda: f"{which} of lock 'bad' raised" in caplog.text)
    is_renewed(events, clock)
    ann(good.check)
    ann(good.release)
    with pytest.raises(LockLostError):
        ann(bad.release)


def test_a_callback_of_the_holders_own_thread_may_end_the_program(r):
    def end(event):
        if event.kind == "acquired":
            raise SystemExit

    lock = Lock("job", client=r, observer=end)
    with pytest.raises(SystemExit):
        lock.acquire()
    assert is_free(r, lock)


def test_asyncio_a_renewal_that_is_cancelled_is_tried_again(r, valkey, clock):
    async def main():
        events, cancelled = [], False
        async with (
            redis.asyncio.Redis.from_url(valkey) as client,
            AsyncLock("job", client, TTL, observer=events.append) as lock,
        ):
            clock.advance(0.4 * TTL)
            while not cancelled:
                for task in other_tasks():
                    if task.get_name() == "bloomlock-renewal":
                        cancelled = task.cancel()
                await asyncio.sleep(0)
            await happened(lambda: renewals(events))
            lock.check()

    asyncio.run(main())


def test_asyncio_a_loop_that_does_not_run_holds_up_no_renewal_of_the_next_one(r, valkey, clock):
    async def hold_both():
        async with AsyncLock("b", client, TTL, observer=events.append) as lock:
            clock.advance(0.4 * TTL)
            await happened(lambda: renewals(events))
            lock.check()

    client, events = redis.asyncio.Redis.from_url(valkey), []
    left = AsyncLock("a", client, TTL, thread_local=False)
    with contextlib.closing(asyncio.new_event_loop()) as first:
        assert first.run_until_complete(left.acquire())
        asyncio.run(hold_both())


def test_asyncio_what_the_watchdog_finds_is_told_in_the_loop(r, valkey, clock):
    """An event that was set in another thread would wake its waiter late or never."""

    async def main():
        places = []

        def note(_):
            places.append(asyncio.get_running_loop())

        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, TTL, observer=note, on_lost=note)
            await lock.acquire()
            lost = asyncio.create_task(lock.lost.wait())
            await asyncio.sleep(0)
            r.delete(lock.key)
            clock.advance(0.4 * TTL)
            await asyncio.wait_for(lost, TTL)
            await happened(lambda: len(places) == 3)

    asyncio.run(main(), debug=True)
