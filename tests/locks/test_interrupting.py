"""KeyboardInterrupt in acquire, at every point where Python looks for signals."""

from __future__ import annotations

import contextlib
import random
import signal
import threading

import pytest
import redis
from interrupting import InterruptedAt, was_in_acquire
from lock_tools import LONG, is_free, queue_of
from servers import wait_until

from bloomlock import Lock
from bloomlock.runtime.subscriptions import Listener

MOST = 5000
SIGNALS = 150


def acquire_interrupted(lock, number):
    """Return whether it was interrupted; a hold then is left only if acquire had ended."""
    try:
        with InterruptedAt(number) as point:
            lock.acquire()
    except KeyboardInterrupt as error:
        assert (lock.token is None) == was_in_acquire(error)
        return True
    return point.left < 0


def release_if_held(lock):
    if lock.token is not None:
        lock.release()


def wait_until_free(r, lock):
    """What the interrupted call could not give back is given back in the background."""
    assert lock.ttl == LONG, "the end of the lease is not what is waited for"
    wait_until(lambda: is_free(r, lock), LONG / 2)


def test_of_a_free_lock(any_url):
    with redis.Redis.from_url(any_url) as r, redis.Redis.from_url(any_url) as client:
        for number in range(MOST):
            lock = Lock("job", ttl=LONG, client=client)
            interrupted = acquire_interrupted(lock, number)
            release_if_held(lock)
            wait_until_free(r, lock)
            assert lock.acquire(blocking=False)
            lock.release()
            if not interrupted:
                assert number > 50
                return
    raise AssertionError


def test_an_observer_hears_what_comes_after_an_interrupt(r, valkey):
    """What is reported while the interrupt comes may be left out; nothing that follows is."""
    events = []
    with redis.Redis.from_url(valkey) as client:
        lock = Lock("job", ttl=LONG, client=client, observer=events.append)
        for number in range(MOST):
            interrupted = acquire_interrupted(lock, number)
            release_if_held(lock)
            wait_until_free(r, lock)
            events.clear()
            assert lock.acquire(blocking=False), number
            lock.release()
            assert [event.kind for event in events[-2:]] == ["acquired", "released"], number
            if not interrupted:
                assert number > 50
                return
    raise AssertionError


def test_of_a_listener_whose_connection_breaks(r, valkey):
    with redis.Redis.from_url(valkey) as client:
        for number in range(MOST):
            listener = Listener(client.connection_pool)
            listener.connect()
            r.client_kill_filter(_type="pubsub")
            with contextlib.suppress(KeyboardInterrupt), InterruptedAt(number) as point:
                listener.wait(b"token", 0.01)
            # It connects again, or has a connection that works.
            assert listener.wait(b"token", 0.02) is None, number
            listener.close()
            if point.left >= 0:
                assert number > 10
                return
    raise AssertionError


def test_of_the_first_lock_of_a_client(valkey, r, seed):
    """Connecting has many points; some of them, others at each run."""
    number, points = 0, random.Random(seed)
    while number < MOST:
        with redis.Redis.from_url(valkey) as client:
            lock = Lock("job", ttl=LONG, client=client)
            interrupted = acquire_interrupted(lock, number)
            release_if_held(lock)
            wait_until_free(r, lock)
            assert lock.acquire(blocking=False)
            lock.release()
        if not interrupted:
            return
        number += points.randrange(1, 6)
    raise AssertionError


@pytest.mark.parametrize("any_url", ["valkey"], indirect=True)
def test_of_a_lock_that_is_handed_over(any_url):
    with redis.Redis.from_url(any_url) as r, redis.Redis.from_url(any_url) as client:
        for number in range(MOST):
            lock, ended = Lock("job", ttl=LONG, client=client), threading.Event()
            holder = Lock("job", client=any_url, thread_local=False)
            holder.acquire()

            def let_go(holder=holder, ended=ended):
                wait_until(lambda: queue_of(r, holder) or ended.is_set())
                holder.release()

            thread = threading.Thread(target=let_go)
            thread.start()
            interrupted = acquire_interrupted(lock, number)
            ended.set()
            thread.join()
            release_if_held(lock)
            wait_until_free(r, lock)
            holder.close()
            if not interrupted:
                assert number > 100
                return
    raise AssertionError


def test_by_signals_at_any_time(valkey, r, seed):
    moments = random.Random(seed)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    try:
        for _ in range(SIGNALS):
            lock, holder = Lock("job", ttl=LONG, client=valkey), Lock("job", client=r)
            if moments.random() < 0.5:
                holder.acquire()
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 3e-3))
                lock.acquire(timeout=0.002)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                interrupted += 1
                assert (lock.token is None) or not was_in_acquire(error)
            release_if_held(holder)
            release_if_held(lock)
            wait_until_free(r, lock)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0


@pytest.mark.usefixtures("interruptible")
def test_of_a_waiter_leaves_the_queue(valkey, r):
    holder = Lock("job", client=r, thread_local=False)
    holder.acquire()
    waiter = Lock("job", client=valkey)
    main = threading.get_ident()

    def interrupt():
        wait_until(lambda: queue_of(r, holder) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire(timeout=LONG)
    thread.join()
    # Long before the queue's keys end by themselves.
    wait_until(lambda: queue_of(r, holder) == 0, LONG / 4)
    holder.release()
    with waiter:
        assert waiter.owned()
