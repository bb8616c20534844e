"""Who wrote r.lock(name, timeout=10, blocking_timeout=5) keeps the rest of his program."""

from __future__ import annotations

import inspect

import pytest
import redis
import redis.asyncio
from contract.lock_backends import TTL
from lock_tools import is_free, queue_of
from people import Person
from redis.exceptions import LockError as RedisLockError
from redis.exceptions import LockNotOwnedError as RedisLockNotOwnedError
from servers import wait_until

from bloomlock import AsyncLock, FairLock, Lock, ReentrantLock
from bloomlock.errors import (
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    QuorumError,
)
from bloomlock.locks.options import LockParameters
from bloomlock.locks.protocol import waiting

PAIRS = [(redis.lock.Lock, Lock), (redis.asyncio.lock.Lock, AsyncLock)]


def parameters(function):
    names = set(inspect.signature(function).parameters)
    # A token that the caller chooses is its alone, and so are what polls, adds and keeps quiet.
    names -= {"self", "redis", "name", "token", "sleep", "replace_ttl", "raise_on_release_error"}
    return {{"additional_time": "ttl"}.get(name, name) for name in names}


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=["threads", "asyncio"])
def test_each_of_its_parameters_is_ours(theirs, ours):
    for method in ("acquire", "release", "locked", "owned", "extend", "reacquire"):
        assert parameters(getattr(theirs, method)) <= parameters(getattr(ours, method))
    assert parameters(theirs.__init__) <= {*LockParameters.__annotations__}


@pytest.mark.parametrize("kind", [Lock, FairLock, ReentrantLock])
def test_what_its_users_call(r, kind):
    lock = kind("job", r, timeout=10, blocking_timeout=0.01)
    assert (lock.name, lock.ttl) == ("job", 10.0)
    with lock:
        assert not Lock("job", r).acquire(blocking=False)
        assert 9_000 < r.pttl(lock.key) <= 10_000
        assert lock.extend(20) is True
        assert lock.reacquire() is True
        assert 15_000 < r.pttl(lock.key) <= 20_000
    assert is_free(r, lock)


def test_its_timeout_is_a_lease_that_is_not_renewed(r, clock):
    events = []
    lock = Lock("job", client=r, timeout=10, observer=events.append)
    lock.acquire()
    clock.advance(9)
    lock.check()
    clock.advance(1)
    with pytest.raises(LockLostError, match="its lease ran out"):
        lock.check()
    assert [event.kind for event in events] == ["acquired", "lost"]
    with pytest.raises(RedisLockNotOwnedError):
        lock.release()


def test_no_timeout_of_acquire_is_that_of_the_object(r):
    other = Lock("job", r, blocking_timeout=0.01)
    with Lock("job", r):
        assert other.acquire(timeout=None) is False
        assert other.acquire(True, None) is False
        assert other.acquire(0) is False
        assert other.acquire(timeout=None, blocking_timeout=0.02) is False


def test_its_own_lock_and_ours_exclude_each_other(client, monkeypatch):
    monkeypatch.setattr(waiting, "SLICE_MS", 50)
    ours, person = Lock("job", client=client), Person()
    its = client.lock(ours.key, thread_local=False)
    # Without a lease, and without a word when it ends: a waiter of ours asks again.
    assert its.acquire(blocking=False)
    assert ours.locked()
    assert ours.acquire(blocking=False) is False
    wait = person.start(ours.acquire)
    wait_until(lambda: queue_of(client, ours) == 1)
    its.release()
    assert wait.result(TTL) is True
    assert its.locked()
    assert its.acquire(blocking=False) is False
    person(ours.release)
    assert its.acquire(blocking=False)
    its.release()
    ours.close()
    person.end()


def test_the_errors_are_also_its_own(r):
    for error in (LockNotOwnedError, LockLostError, LockTimeoutError, QuorumError):
        assert issubclass(error, RedisLockError)
        assert issubclass(error, LockError)
    assert issubclass(LockLostError, RedisLockNotOwnedError)
    with pytest.raises(RedisLockNotOwnedError):
        Lock("job", client=r).release()
