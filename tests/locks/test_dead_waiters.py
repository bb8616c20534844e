"""A waiter that was killed holds nobody up: the lock goes past it in the step that frees it."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import redis
from lock_tools import LONG, queue_of
from servers import wait_until

from bloomlock import Lock, ReadWriteLock
from bloomlock.locks.protocol.model import read_record

WAIT = """
import sys
from bloomlock import ReadWriteLock
ReadWriteLock("job", sys.argv[1]).{}.acquire()
"""


@pytest.fixture
def r(any_url):
    with redis.Redis.from_url(any_url) as made:
        yield made


@contextmanager
def killed_waiter(r, url, side="write"):
    """A process that waits first, until it is killed; the server knows that it is gone."""
    key = Lock("job", client=r).key
    process = subprocess.Popen([sys.executable, "-c", WAIT.format(side), url])
    try:
        wait_until(lambda: r.zcard(f"{key}:queue") == 1, LONG)
        channel = read_record(r.zrange(f"{key}:queue", 0, 0)[0]).channel
        yield
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: r.pubsub_numsub(channel)[0][1] == 0, LONG)


def test_the_next_waiter_gets_the_lock(r, any_url):
    holder, waiter = Lock("job", client=r), Lock("job", client=any_url, thread_local=False)
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    with killed_waiter(r, any_url):
        thread.start()
        wait_until(lambda: queue_of(r, holder) == 2, LONG)
    holder.release()
    value = r.get(holder.key)
    thread.join(LONG)
    assert value is not None
    assert value.decode() == waiter.token
    assert queue_of(r, holder) == 1, "the dead one keeps its place until it is known to be dead"
    waiter.release()
    assert r.get(holder.key) is None
    waiter.close()


def test_who_does_not_wait_gets_it_if_nobody_else_is_left(r, any_url):
    holder, other = Lock("job", client=r), Lock("job", client=r)
    holder.acquire()
    with killed_waiter(r, any_url):
        assert other.acquire(blocking=False) is False
    holder.release()
    assert other.acquire(blocking=False) is True
    other.release()


def test_readers_join_readers_past_a_dead_writer(r, any_url):
    one, two = ReadWriteLock("job", client=r).read, ReadWriteLock("job", client=r).read
    one.acquire()
    with killed_waiter(r, any_url):
        assert two.acquire(blocking=False) is False
    assert two.acquire(blocking=False) is True
    one.release()
    two.release()
