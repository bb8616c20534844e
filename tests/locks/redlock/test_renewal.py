"""A lease is renewed on a majority as long as it is held, and no longer."""

from __future__ import annotations

import gc
import threading
import time

import pytest
from locks.redlock.several import LONG
from servers import wait_until

from bloomlock import LockLostError


def test_it_outlives_its_lease(three):
    lock = three.lock(ttl=1)
    with lock:
        token = lock.token
        time.sleep(2.2)
        assert three.tokens(lock.key) == [token] * 3
        assert not three.lock().acquire(blocking=False)
        lock.check()
    assert three.held(lock.key) == 0


def test_it_outlives_its_lease_with_a_dead_and_a_silent_server(five):
    lock = five.lock(ttl=1, server_timeout=0.1)
    with lock:
        five.servers[3].kill()
        five.stop(4)
        time.sleep(2.5)
        lock.check()
        assert five.held(lock.key) == 3
        assert not five.lock(server_timeout=0.5).acquire(blocking=False)
    assert five.held(lock.key) == 0


def test_without_renewal_it_ends(three):
    lock = three.lock(ttl=0.3, renew=False)
    lock.acquire()
    wait_until(lambda: three.held(lock.key) == 0)
    assert lock.remaining() == 0.0
    with pytest.raises(LockLostError):
        lock.release()


def test_it_is_renewed_no_longer_than_it_may_be_held(three):
    lock = three.lock(ttl=0.3, max_hold=0.6)
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
    assert events.count("lost") == 1
    assert three.held(lock.key) == 0


def test_a_server_that_was_lost_is_not_won_back_in_silence(three):
    """A renewal extends what is there; it never takes the lock anew."""
    lock = three.lock(ttl=0.5)
    with lock:
        wait_until(lambda: three.held(lock.key) == 3)
        three.clients[0].delete(lock.key)
        time.sleep(0.7)
        assert three.held(lock.key) == 2
        lock.check()


def test_a_dropped_lock_is_left_to_expire(three):
    lock = three.lock(ttl=0.5)
    key = lock.key
    lock.acquire()
    del lock
    gc.collect()
    wait_until(lambda: three.held(key) == 0)
