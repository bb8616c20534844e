"""A lease is renewed on a majority as long as it is held, and no longer."""

from __future__ import annotations

import gc
import threading

import pytest
from servers import wait_until
from several import LONG, QUICK

from bloomlock import LockLostError

OFTEN = pytest.mark.usefixtures("often")


def shorten(several, lock):
    """Let the lease end sooner on each server; return whether it was renewed on all since."""
    running = [c for s, c in zip(several.servers, several.clients, strict=True) if s.running]
    for client in running:
        client.pexpire(lock.key, 30_000)
    return lambda: all(client.pttl(lock.key) > 30_000 for client in running)


@OFTEN
def test_it_is_renewed_again_and_again(three):
    lock = three.lock(ttl=LONG)
    with lock:
        lock.extend()
        token = lock.token
        wait_until(lambda: three.held(lock.key) == 3)
        for _ in range(3):
            wait_until(shorten(three, lock))
        assert three.tokens(lock.key) == [token] * 3
        assert not three.lock().acquire(blocking=False)
        lock.check()
    wait_until(lambda: three.held(lock.key) == 0)


@OFTEN
def test_it_is_renewed_with_a_dead_and_a_silent_server(five):
    events = []
    lock = five.lock(ttl=LONG, server_timeout=QUICK, observer=events.append)
    with lock:
        lock.extend()
        wait_until(lambda: five.held(lock.key) == 5)
        five.servers[3].kill()
        five.stop(4)
        before = len(events)
        wait_until(lambda: len(events) >= before + 3)
        assert {event.kind for event in events} == {"acquired", "renewed"}
        lock.check()
        assert five.held(lock.key) == 3
        assert not five.lock(server_timeout=QUICK).acquire(blocking=False)
    wait_until(lambda: five.held(lock.key) == 0)


def test_without_renewal_it_ends(three):
    lock = three.lock(ttl=1, renew=False)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 0)
    assert lock.remaining() == 0.0
    with pytest.raises(LockLostError):
        lock.release()


def test_it_is_renewed_no_longer_than_it_may_be_held(three):
    lock = three.lock(ttl=1, max_hold=1.5)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 0)
    assert lock.lost.wait(LONG)


@pytest.mark.parametrize("renew", [False, True])
def test_the_holder_is_told_when_a_majority_is_gone(three, renew):
    told = threading.Event()
    events = []
    lock = three.lock(
        ttl=1, renew=renew, on_lost=lambda _: told.set(), observer=lambda e: events.append(e.kind)
    )
    lock.acquire()
    lost = lock.lost
    for client in three.clients[1:]:
        client.delete(lock.key)
    assert told.wait(LONG)
    assert lost.is_set()
    with pytest.raises(LockLostError):
        lock.check()
    with pytest.raises(LockLostError):
        lock.release()
    wait_until(lambda: events.count("lost") == 1, LONG)
    wait_until(lambda: three.held(lock.key) == 0)


@OFTEN
def test_a_server_that_was_lost_is_not_won_back_in_silence(three):
    """A renewal extends what is there; it never takes the lock anew."""
    events = []
    lock = three.lock(ttl=LONG, observer=events.append)
    with lock:
        lock.extend()
        wait_until(lambda: three.held(lock.key) == 3)
        three.clients[0].delete(lock.key)
        before = len(events)
        wait_until(lambda: len(events) >= before + 2)
        assert three.held(lock.key) == 2
        lock.check()


def test_a_dropped_lock_is_left_to_expire(three):
    lock = three.lock(ttl=1)
    key = lock.key
    lock.acquire()
    del lock
    gc.collect()
    wait_until(lambda: three.held(key) == 0)
