"""The caller's time limit holds within a second, also if the server is silent.

The bounds are far above a second, for a machine that is busy, and far below what the client's own
time-outs and tries amount to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time

import pytest
import redis.asyncio
import servers
from lock_tools import LONG, happened, is_free
from proxy import Proxy
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from servers import wait_until

from bloomlock import AsyncBloomFilter, AsyncLock, AsyncRedlock, BloomFilter, Lock, Redlock
from bloomlock.locks.protocol import waiting
from bloomlock.server import PrivateServer

CLIENT_TIMEOUT = 20.0
"""What the client waits for a reply, again and again."""
LIMIT = 0.3
MOST = 10.0
LEASE = 10 * LONG
"""What is left of a lock that nothing gives back."""
WAYS = {
    "timeout": {"timeout": LIMIT},
    "blocking_timeout": {"blocking_timeout": LIMIT},
    "not blocking": {"blocking": False},
}


class SilentProxy(Proxy):
    """Delivers until it falls silent: then it goes on to accept, and delivers and answers later."""

    def __init__(self, url):
        super().__init__(url, self._wait)
        self.speaks = threading.Event()
        self.speaks.set()

    def _wait(self, _name, _number):
        self.speaks.wait(LONG)
        return "pass"


@pytest.fixture
def proxy(valkey, r):
    with SilentProxy(valkey) as made:
        yield made
        made.speaks.set()


@pytest.fixture
def far(proxy):
    """A client that reaches the server by the proxy."""
    with redis.Redis.from_url(proxy.url, socket_timeout=CLIENT_TIMEOUT) as made:
        yield made


@pytest.fixture
def stopped():
    """A server that can be stopped by SIGSTOP."""
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        with redis.Redis.from_url(server.url) as direct:
            pid = direct.info("server")["process_id"]
        try:
            yield server, pid
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def curt(monkeypatch):
    """Let a caller's second beyond its time limit be a tenth: for those who surely wait it out.

    One test per way has the whole second.
    """
    monkeypatch.setattr(waiting, "GRACE_SECONDS", 0.1)


@contextlib.contextmanager
def soon():
    """Fail if the body takes as long as the client's time-out, or nearly so."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < MOST


@pytest.mark.usefixtures("curt")
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connects"])
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_acquire(r, proxy, far, how, connected):
    lock = Lock("job", client=far, ttl=LEASE)
    if connected:
        with lock:
            pass
    proxy.speaks.clear()
    with soon(), pytest.raises(RedisTimeoutError, match="within the time limit"):
        lock.acquire(**how)
    assert lock.token is None
    # What arrives later is given back: nothing is left of it long before the lease is over.
    proxy.speaks.set()
    wait_until(lambda: is_free(r, lock), LONG)
    with lock:
        lock.check()
    # It may also have waited in the queue meanwhile, and been granted the lock by this release.
    wait_until(lambda: is_free(r, lock), LONG)


def test_acquire_on_a_server_that_is_stopped(stopped):
    server, pid = stopped
    with redis.Redis.from_url(server.url, socket_timeout=CLIENT_TIMEOUT) as client:
        lock = Lock("job", client=client)
        with lock:
            pass
        os.kill(pid, signal.SIGSTOP)
        with soon(), pytest.raises(RedisTimeoutError):
            lock.acquire(timeout=LIMIT)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: is_free(client, lock), LONG)


def test_a_server_that_falls_silent_under_a_waiter(r, proxy, far):
    holder, waiter = Lock("job", client=r), Lock("job", client=far)
    with holder:
        assert waiter.acquire(timeout=0.01) is False
        timer = threading.Timer(0.2, proxy.speaks.clear)
        timer.start()
        with soon(), contextlib.suppress(RedisTimeoutError):
            assert waiter.acquire(timeout=1) is False
        timer.join()
        proxy.speaks.set()
        wait_until(lambda: not r.zcard(f"{waiter.key}:queue"), LONG)
    wait_until(lambda: is_free(r, waiter), LONG)


@pytest.mark.usefixtures("curt")
def test_where_scripts_are_forbidden(watch_url):
    with (
        SilentProxy(watch_url) as proxy,
        redis.Redis.from_url(proxy.url, socket_timeout=CLIENT_TIMEOUT) as far,
        redis.Redis.from_url(watch_url) as direct,
    ):
        direct.flushall()
        lock = Lock("job", client=far)
        with lock:
            pass
        proxy.speaks.clear()
        with soon(), pytest.raises(RedisTimeoutError):
            lock.acquire(timeout=LIMIT)
        proxy.speaks.set()
        wait_until(lambda: is_free(direct, lock), LONG)


def test_a_limit_that_is_not_reached_changes_nothing(any_url):
    with redis.Redis.from_url(any_url) as r:
        lock = Lock("job", client=r)
        for how in WAYS.values():
            assert lock.acquire(**how)
            assert Lock("job", client=r).acquire(**how) is False
            lock.release()
            assert is_free(r, lock)


def test_redlock(valkey, r, proxy, far):
    lock = Redlock("job", clients=[far], longest_ttl=0)
    with lock:
        pass
    proxy.speaks.clear()
    for how in WAYS.values():
        with soon(), pytest.raises(RedisError):
            lock.acquire(**how)
    proxy.speaks.set()
    wait_until(lambda: is_free(r, lock), LONG)


def test_the_lock_strategy(r, proxy, far):
    items = BloomFilter("items", 1000, client=far, strategy=lock_strategy())
    assert items.add("one")
    proxy.speaks.clear()
    with soon(), pytest.raises(RedisTimeoutError):
        items.add("two")
    proxy.speaks.set()
    wait_until(lambda: not r.keys("*:lock:*[0-9]"), LONG)
    assert items.add("two")
    assert not items.add("one")


def lock_strategy():
    from bloomlock.strategies.lock import LockStrategy  # noqa: PLC0415 - it loads NumPy

    return LockStrategy(timeout=LIMIT)


async def far_client(proxy):
    return redis.asyncio.Redis.from_url(proxy.url, socket_timeout=CLIENT_TIMEOUT)


@pytest.mark.usefixtures("curt")
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connects"])
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_asyncio_acquire(r, proxy, how, connected):
    async def main():
        client = await far_client(proxy)
        lock = AsyncLock("job", client, ttl=LEASE)
        if connected:
            async with lock:
                pass
        proxy.speaks.clear()
        with soon(), pytest.raises(RedisTimeoutError, match="within the time limit"):
            await lock.acquire(**how)
        assert lock.token is None
        proxy.speaks.set()
        await happened(lambda: is_free(r, lock))
        async with lock:
            lock.check()
        await happened(lambda: is_free(r, lock))
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connects"])
@pytest.mark.parametrize("within", [None, LONG])
def test_asyncio_a_cancelled_acquire(r, proxy, within, connected):
    async def main():
        client = await far_client(proxy)
        lock = AsyncLock("job", client, blocking_timeout=within)
        if connected:
            async with lock:
                pass
        proxy.speaks.clear()
        with soon(), pytest.raises(TimeoutError):
            async with asyncio.timeout(LIMIT):
                await lock.acquire()
        proxy.speaks.set()
        await happened(lambda: is_free(r, lock))
        async with lock:
            lock.check()
        await client.aclose()

    asyncio.run(main())


def test_asyncio_a_cancelled_release(r, proxy):
    async def main():
        client = await far_client(proxy)
        lock = AsyncLock("job", client)
        await lock.acquire()
        proxy.speaks.clear()
        with soon(), pytest.raises(TimeoutError):
            async with asyncio.timeout(LIMIT):
                await lock.release()
        assert lock.token is None
        proxy.speaks.set()
        await happened(lambda: is_free(r, lock))
        await client.aclose()

    asyncio.run(main())


@pytest.mark.usefixtures("curt")
def test_asyncio_the_first_connection_by_a_url(proxy):
    async def main():
        proxy.speaks.clear()
        lock = AsyncLock("job", f"{proxy.url}?socket_timeout={CLIENT_TIMEOUT}")
        with soon(), pytest.raises(RedisTimeoutError):
            await lock.acquire(timeout=LIMIT)

    asyncio.run(main())


def test_asyncio_redlock(r, proxy):
    async def main():
        client = await far_client(proxy)
        lock = AsyncRedlock("job", clients=[client], longest_ttl=0)
        async with lock:
            pass
        proxy.speaks.clear()
        with soon(), pytest.raises(TimeoutError):
            async with asyncio.timeout(LIMIT):
                await lock.acquire()
        for how in WAYS.values():
            with soon(), pytest.raises(RedisError):
                await lock.acquire(**how)
        proxy.speaks.set()
        await happened(lambda: is_free(r, lock))
        await lock.close()
        await client.aclose()

    asyncio.run(main())


def test_asyncio_the_lock_strategy(r, proxy):
    async def main():
        client = await far_client(proxy)
        items = AsyncBloomFilter("items", 1000, client=client, strategy=lock_strategy())
        assert await items.add("one")
        proxy.speaks.clear()
        with soon(), pytest.raises(RedisTimeoutError):
            await items.add("two")
        proxy.speaks.set()
        await happened(lambda: not r.keys("*:lock:*[0-9]"))
        assert await items.add("two")
        assert not await items.add("one")
        await client.aclose()

    asyncio.run(main())
