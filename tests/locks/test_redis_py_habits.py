"""Who wrote r.lock(name, timeout=10, blocking_timeout=5) keeps the rest of his program."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from lock_tools import is_free
from redis.exceptions import LockError as RedisLockError
from redis.exceptions import LockNotOwnedError as RedisLockNotOwnedError

from bloomlock import AsyncLock, Lock, LockError, LockLostError, LockNotOwnedError, LockTimeoutError

MINE = "mine"


def test_the_same_constructor(client):
    lock = Lock("job", client=client, timeout=10, blocking_timeout=5, sleep=0.1, thread_local=True)
    assert lock.acquire(blocking=True, blocking_timeout=1, token=MINE) is True
    assert lock.token == MINE
    assert client.get(lock.key) == b"mine"
    assert lock.locked()
    assert lock.owned()
    # redis-py's timeout is a lease that is not renewed.
    assert lock.ttl == 10
    assert lock._session.options.renews is False
    lock.extend(20)
    assert 15_000 < client.pttl(lock.key) <= 20_000
    assert 15 < lock.remaining() < 20
    lock.reacquire()
    assert 15_000 < client.pttl(lock.key) <= 20_000
    lock.release()
    assert is_free(client, lock)


def test_reacquire_gives_the_full_lease(client):
    with Lock("job", client=client, timeout=10) as lock:
        client.pexpire(lock.key, 1000)
        lock.reacquire()
        assert 5_000 < client.pttl(lock.key) <= 10_000


def test_a_token_may_be_bytes(client):
    lock = Lock("job", client=client)
    lock.acquire(token=MINE.encode(), sleep=0.5)
    assert lock.token == MINE
    lock.release()


def test_its_own_lock_on_the_key_excludes_ours_and_ours_excludes_it(client):
    ours = Lock("job", client=client)
    its = client.lock(ours.key, timeout=30)
    assert its.acquire(blocking=False)
    assert ours.locked()
    assert ours.acquire(blocking=False) is False
    assert ours.acquire(timeout=0.05) is False
    its.release()
    assert ours.acquire(blocking=False)
    assert its.locked()
    assert its.acquire(blocking=False) is False
    with pytest.raises(RedisLockError):
        its.release()
    ours.release()
    assert its.acquire(blocking=False)
    its.release()


def test_ours_waits_for_its_lock_that_ends_by_itself(client):
    ours = Lock("job", client=client)
    assert client.lock(ours.key, timeout=0.2).acquire()
    with ours:
        assert ours.owned()


def test_ours_waits_for_its_lock_that_has_no_lease(r):
    ours = Lock("job", client=r)
    its = r.lock(ours.key, thread_local=False)
    assert its.acquire()
    timer = threading.Timer(0.1, its.release)
    timer.start()
    with ours:
        assert ours.owned()
    timer.join()


def test_the_errors_are_also_its_own(r):
    lock = Lock("job", client=r, timeout=10)
    with pytest.raises(RedisLockNotOwnedError):
        lock.release()
    for error in (LockNotOwnedError, LockLostError, LockTimeoutError):
        assert issubclass(error, RedisLockError)
        assert issubclass(error, LockError)
    assert issubclass(LockLostError, RedisLockNotOwnedError)
    lock.acquire()
    r.set(lock.key, "somebody else's")
    with pytest.raises(RedisLockNotOwnedError):
        lock.release()
    assert r.get(lock.key) == b"somebody else's"


@pytest.mark.parametrize("raises", [True, False])
def test_raise_on_release_error(r, raises, caplog):
    lock = Lock("job", client=r, timeout=10, raise_on_release_error=raises)

    def lose():
        with lock:
            r.delete(lock.key)

    if raises:
        with pytest.raises(LockLostError, match="'job' was lost: its key was gone"):
            lose()
    else:
        lose()
        assert "lock 'job' was not released" in caplog.text


def test_asyncio(valkey, r):
    async def main():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            lock = AsyncLock("job", client=client, timeout=10, blocking_timeout=0.05, sleep=0.1)
            its = client.lock(lock.key, timeout=30)
            assert await its.acquire()
            assert await lock.acquire() is False
            assert await lock.locked()
            await its.release()
            assert await lock.acquire(blocking=True, blocking_timeout=1, token=MINE)
            assert await client.get(lock.key) == b"mine"
            assert await its.acquire(blocking=False) is False
            await lock.extend(20)
            await lock.reacquire()
            assert await lock.owned()
            await lock.release()
            with pytest.raises(RedisLockNotOwnedError):
                await lock.release()

    asyncio.run(main())
