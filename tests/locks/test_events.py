"""What observers are told, and that they can do no harm."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter

import pytest
import redis.asyncio
from lock_tools import LONG, happened, is_free
from servers import wait_until

from bloomlock import AsyncLock, Lock, LockEvent, LockLostError, ReentrantLock
from bloomlock.locks.events import Events
from bloomlock.locks.session import LockSession

OFTEN = pytest.mark.usefixtures("often")


def kinds(events):
    return [event.kind for event in events]


def test_each_thing_is_told_once(client):
    events = []
    lock = Lock("job", client=client, observer=events.append)
    for _ in range(3):
        lock.acquire()
        assert lock.acquire(blocking=False) is False
        lock.release()
    assert kinds(events) == ["acquired", "timeout", "released"] * 3
    assert {event.name for event in events} == {"job"}
    fences = [event.fence for event in events if event.kind == "acquired"]
    assert fences == sorted(set(fences))
    assert fences == [event.fence for event in events if event.kind == "released"]
    assert all(0 <= event.seconds < LONG for event in events)
    assert all(event.error is None for event in events)


def test_a_timeout_tells_how_long_it_waited(r):
    events = []
    with Lock("job", client=r):
        Lock("job", client=r, observer=events.append).acquire(timeout=0.1)
    [event] = events
    assert isinstance(event, LockEvent)
    assert (event.kind, event.fence) == ("timeout", None)
    assert 0.1 <= event.seconds < LONG


def test_a_nested_acquire_is_no_event(r):
    events = []
    lock = ReentrantLock("job", client=r, observer=events.append)
    with lock, lock:
        pass
    assert kinds(events) == ["acquired", "released"]


@OFTEN
def test_renewed_and_lost(r, caplog):
    events = []
    # A name of its own: locks that other tests have dropped are reported late.
    lock = Lock("told of", client=r, ttl=LONG, observer=events.append)
    lock.acquire()
    lock.extend()
    wait_until(lambda: kinds(events).count("renewed") >= 2)
    r.set(lock.key, "another's")
    wait_until(lambda: "lost" in kinds(events))
    with pytest.raises(LockLostError):
        lock.release()
    counts = Counter(kinds(events))
    assert (counts["acquired"], counts["lost"], counts["released"]) == (1, 1, 0)
    lost = events[-1]
    assert lost.kind == "lost"
    assert "gone" in lost.error
    assert {event.fence for event in events} == {events[0].fence}
    records = [record for record in caplog.records if "'told of'" in record.message]
    assert [(record.levelno, record.message) for record in records] == [
        (logging.WARNING, f"lock 'told of' was lost: {lost.error}")
    ]
    assert all(record.name.startswith("bloomlock") for record in records)
    assert r.get(lock.key) == b"another's"


@OFTEN
def test_an_observer_that_raises_harms_nothing(r, caplog):
    seen = []

    def observe(event):
        seen.append(event.kind)
        raise RuntimeError(event.kind)

    with Lock("job", client=r, ttl=LONG, observer=observe) as lock:
        lock.extend()
        wait_until(lambda: seen.count("renewed") >= 3)
        assert lock.acquire(blocking=False) is False
        assert lock.owned()
    # A renewal that is being reported reports the release after it, in its own thread.
    wait_until(lambda: "released" in seen)
    assert seen[-1] == "released"
    assert is_free(r, lock)
    assert "the observer of lock 'job' raised" in caplog.text


@OFTEN
@pytest.mark.parametrize("turn", ["acquired", "released"])
def test_renewals_are_reported_between_the_acquisition_and_the_release(r, monkeypatch, turn):
    """The watchdog's thread is held up between a reply and its report, or the holder's thread."""
    renewed, go_on, events = threading.Event(), threading.Event(), []
    report_renewed, report = LockSession.renewed, Events.report

    def renewed_late(self, hold, now):
        renewed.set()
        assert turn == "acquired" or go_on.wait(LONG)
        report_renewed(self, hold, now)
        go_on.set()

    def report_late(self, event, hold=None):
        if event.kind == turn == "acquired":
            assert go_on.wait(LONG)
        report(self, event, hold)

    monkeypatch.setattr(LockSession, "renewed", renewed_late)
    monkeypatch.setattr(Events, "report", report_late)
    lock = Lock("job", client=r, ttl=LONG, observer=events.append)
    lock.acquire()
    lock.extend()
    assert renewed.wait(LONG)
    lock.release()
    go_on.set()
    with Lock("other", client=r, ttl=LONG, observer=events.append) as other:
        other.extend()
        wait_until(lambda: kinds(events).count("renewed") >= 3)
    of_job = [event.kind for event in events if event.name == "job"]
    assert (of_job[0], of_job[-1]) == ("acquired", "released")


@OFTEN
def test_on_lost_that_raises_harms_nobody(r, caplog, recwarn):
    def fail(lock):
        raise RuntimeError(lock.name)

    renewed = []
    lock = Lock("job", client=r, ttl=LONG, on_lost=fail)
    with Lock("other", client=r, ttl=LONG, observer=renewed.append) as other:
        other.extend()
        lock.acquire()
        lock.extend()
        r.delete(lock.key)
        assert lock.lost.wait(LONG)
        wait_until(lambda: "on_lost of lock 'job' raised" in caplog.text)
        before = len(renewed)
        wait_until(lambda: len(renewed) >= before + 3)
        other.check()
    with pytest.raises(LockLostError):
        lock.release()
    # What earlier tests have left open may be collected now.
    assert not [one for one in recwarn.list if one.category is not ResourceWarning]


@OFTEN
@pytest.mark.parametrize("awaited", [False, True])
def test_asyncio(r, valkey, awaited, caplog):
    async def main():
        events, told = [], []

        def observe(event):
            events.append(event)
            raise RuntimeError

        def fail(lock):
            told.append(lock)
            raise RuntimeError

        async def fail_awaited(lock):
            await asyncio.sleep(0)
            fail(lock)

        async with redis.asyncio.Redis.from_url(valkey) as client:
            on_lost = fail_awaited if awaited else fail
            lock = AsyncLock("job", client, LONG, observer=observe, on_lost=on_lost)
            other = AsyncLock("other", client, LONG, observer=observe)
            async with other:
                await other.extend()
                await lock.acquire()
                await lock.extend()
                await happened(lambda: kinds(events).count("renewed") >= 4)
                r.delete(lock.key)
                async with asyncio.timeout(LONG):
                    await lock.lost.wait()
                await happened(lambda: told == [lock])
                with pytest.raises(LockLostError):
                    await lock.release()
                before = len(events)
                await happened(lambda: len(events) >= before + 3)
                other.check()
            assert await lock.acquire(timeout=0.05)
            assert await lock.acquire(blocking=False) is False
            await lock.release()
        counts = Counter(kinds(events))
        del counts["renewed"]
        assert counts == {"acquired": 3, "lost": 1, "released": 2, "timeout": 1}

    asyncio.run(main())
    assert "on_lost of lock 'job' raised" in caplog.text
