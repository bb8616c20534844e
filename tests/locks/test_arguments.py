"""What may be given to a lock, and what it answers: as users of redis-py and NumPy expect."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import itertools
import pickle
import time

import numpy as np
import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from lock_tools import LONG, is_free

from bloomlock import (
    AsyncBloomFilter,
    AsyncLock,
    AsyncReadWriteLock,
    AsyncRedlock,
    BloomFilter,
    ConfigurationError,
    FairLock,
    Lock,
    LockLostError,
    MemoryBloomFilter,
    ReadWriteLock,
    Redlock,
    ReentrantLock,
)
from bloomlock.locks.options import LockOptions, LockParameters
from bloomlock.strategies.lock import LockStrategy

OURS_BY_ANOTHER_NAME = {"additional_time": "ttl"}
PAIRS = [(redis.lock.Lock, Lock), (redis.asyncio.lock.Lock, AsyncLock)]
BOTH = pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=["threads", "asyncio"])


def parameters(function):
    names = set(inspect.signature(function).parameters) - {"self", "redis", "name"}
    return {OURS_BY_ANOTHER_NAME.get(name, name) for name in names}


@BOTH
@pytest.mark.parametrize(
    "method", ["acquire", "release", "locked", "owned", "extend", "reacquire", "__init__"]
)
def test_each_parameter_of_redis_pys_lock_is_one_of_ours(theirs, ours, method):
    mine = parameters(getattr(ours, method))
    if method == "__init__":
        mine |= {*LockParameters.__annotations__}
    assert parameters(getattr(theirs, method)) <= mine


def test_each_option_is_declared_with_its_type_and_its_default():
    fields = {field.name for field in dataclasses.fields(LockOptions) if field.init}
    assert fields == {*LockParameters.__annotations__, "ttl"}


@BOTH
def test_each_attribute_of_redis_pys_lock_is_one_of_ours_or_not_promised(theirs, ours):
    # Of its own kind: a lock registers the scripts of its class by the first client it is given.
    client = redis.asyncio.Redis() if ours is AsyncLock else redis.Redis()
    made = theirs(client, "job")
    public = {name for name in vars(made) if not name.startswith("_")}
    public -= {"redis", "local", "sleep"}
    public -= {name for name in public if name.startswith("lua_")}
    assert public <= set(dir(ours))


@pytest.mark.parametrize("kind", [Lock, FairLock, ReentrantLock])
def test_as_the_lock_class_of_a_client(r, kind):
    lock = r.lock("job", timeout=10, blocking_timeout=0.01, lock_class=kind)
    assert isinstance(lock, kind)
    assert (lock.name, lock.timeout, lock.blocking) == ("job", 10.0, True)
    assert (lock.blocking_timeout, lock.thread_local) == (0.01, True)
    assert lock.raise_on_release_error is True
    with lock:
        assert not Lock("job", r).acquire(blocking=False)
        assert lock.extend(20) is True
        assert lock.reacquire() is True
    assert is_free(r, lock)
    assert r.lock("job", lock_class=kind).timeout is None


def test_asyncio_as_the_lock_class_of_a_client(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = client.lock("job", timeout=10, lock_class=AsyncLock)
            assert (lock.name, lock.timeout) == ("job", 10.0)
            async with lock:
                assert await lock.extend(20) is True
                assert await lock.reacquire() is True
                assert await lock.extend(20, replace_ttl=False) is True
                assert 20 < lock.remaining() < 40
        assert is_free(r, lock)

    asyncio.run(main())


def test_extend_adds_to_what_is_left_where_redis_pys_would(r):
    with Lock("job", r, timeout=LONG) as lock:
        lock.extend(LONG, replace_ttl=False)
        assert 1.9 * LONG < r.pttl(lock.key) / 1000 <= 2 * LONG
        lock.extend(LONG)
        assert lock.remaining() <= LONG
        with pytest.raises(ConfigurationError, match="ttl must be a number of seconds"):
            lock.extend(364.9999 * 86_400, replace_ttl=False)


@pytest.mark.parametrize("options", [{}, {"replace_ttl": False}])
def test_extend_does_not_go_beyond_max_hold(r, options):
    began = time.monotonic()
    lock = Lock("job", r, ttl=LONG, max_hold=2 * LONG)
    lock.acquire()
    for _ in range(3):
        assert lock.extend(10 * LONG, **options) is True
        latest = began + 2 * LONG - time.monotonic()
        left = r.pttl(lock.key) / 1000
        assert LONG < lock.remaining() <= left <= latest + (time.monotonic() - began)
        assert left <= 2 * LONG
    lock.release()


def test_a_hold_that_was_extended_ends_with_max_hold(r):
    for max_hold in itertools.count(1):  # a busy machine may take longer to extend it
        lock = Lock("job", r, ttl=0.2, max_hold=0.4 * max_hold)
        lock.acquire()
        with contextlib.suppress(LockLostError):
            lock.extend(LONG)
            break
    assert lock.lost.wait(LONG / 2)
    with pytest.raises(LockLostError):
        lock.release()


def test_asyncio_extend_does_not_go_beyond_max_hold(r, valkey):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client, LONG, max_hold=LONG)
            await lock.acquire()
            await lock.extend(10 * LONG)
            assert r.pttl(lock.key) <= 1000 * LONG
            await lock.release()

    asyncio.run(main())


def test_no_timeout_is_none_too(r):
    lock, other = Lock("job", r), Lock("job", r, blocking_timeout=0.01)
    assert lock.acquire(timeout=None)
    assert other.acquire(timeout=None) is False
    assert other.acquire(True, None) is False
    assert other.acquire(blocking=False, timeout=None) is False
    assert other.acquire(timeout=None, blocking_timeout=0.02) is False
    lock.release()


@pytest.mark.parametrize("number", [np.int64, np.uint8, np.float32, np.float64])
def test_numbers_and_flags_of_numpy(r, number):
    lock = Lock(
        "job",
        r,
        number(30),
        max_hold=number(40),
        blocking_timeout=number(1),
        replicas=np.int8(0),
        blocking=np.True_,
        thread_local=np.False_,
    )
    assert (lock.ttl, lock.blocking, lock.thread_local) == (30.0, True, False)
    assert lock.acquire(timeout=number(1))
    assert lock.extend(number(20))
    assert Lock("job", r).acquire(np.False_) is False
    lock.release()
    LockStrategy(timeout=number(3), stripes=np.int64(7))
    with pytest.raises(ConfigurationError, match="ttl must be a number of seconds"):
        Lock("job", r, np.True_)


MADE = {
    "Lock": lambda r, _: Lock("job", r),
    "ReentrantLock": lambda r, _: ReentrantLock("job", r),
    "ReadWriteLock": lambda r, _: ReadWriteLock("job", r),
    "Redlock": lambda r, _: Redlock("job", [r]),
    "AsyncLock": lambda _, a: AsyncLock("job", a),
    "AsyncReadWriteLock": lambda _, a: AsyncReadWriteLock("job", a),
    "AsyncRedlock": lambda _, a: AsyncRedlock("job", [a]),
    "BloomFilter": lambda r, _: BloomFilter("job", 1000, client=r),
    "AsyncBloomFilter": lambda _, a: AsyncBloomFilter("job", 1000, client=a),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("move", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_a_process_cannot_be_pickled(r, valkey, kind, move):
    made = MADE[kind](r, redis.asyncio.Redis.from_url(valkey))
    sentence = f"{kind} 'job' cannot be pickled or copied, because .*; make another {kind} of"
    with pytest.raises(TypeError, match=sentence):
        move(made)


def test_a_filter_in_memory_cannot_be_pickled():
    with pytest.raises(TypeError, match="cannot be pickled; write it by save"):
        pickle.dumps(MemoryBloomFilter(1000))
