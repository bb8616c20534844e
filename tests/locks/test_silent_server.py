"""A caller's time limit holds also if the server is silent, and leaves nothing behind.

The client waits for an hour: a limit that does not hold ends the test by pytest's time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import redis.asyncio
from contract.lock_backends import TTL, Backend, World
from lock_tools import happened, is_free
from proxy import Proxy
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from servers import wait_until

from bloomlock import AsyncLock, Lock
from bloomlock.effects import Pause
from bloomlock.locks.protocol import waiting
from bloomlock.server import PrivateServer

LEASE = 10 * TTL
"""What is left of a lock that nothing gives back."""
PATIENCE = "?socket_timeout=3600"


class SilentProxy(Proxy):
    """Delivers until it falls silent: then it goes on to accept, and delivers and answers later."""

    def __init__(self, url):
        super().__init__(url, self._wait)
        self.speaks = threading.Event()
        self.speaks.set()

    def _wait(self, _name, _number):
        self.speaks.wait()
        return "pass"


@pytest.fixture(autouse=True)
def _curt(monkeypatch):
    """Let a caller's second beyond its time limit be a tenth."""
    monkeypatch.setattr(waiting, "GRACE_SECONDS", 0.1)


@pytest.fixture(params=["Lock", "Redlock"])
def kind(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def world(request, kind, valkey):
    with contextlib.ExitStack() as stack:
        yield World(Backend(kind, request.param), [valkey], stack)


@pytest.fixture
def proxy(valkey, r):
    with SilentProxy(valkey) as made:
        yield made
        made.speaks.set()


@pytest.fixture
def lock(world, kind, proxy):
    options = {"server_timeout": 1.0} if kind == "Redlock" else {}
    return world.lock(urls=[proxy.url + PATIENCE], ttl=LEASE, **options)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connects"])
def test_acquire(world, ann, kind, proxy, lock, connected):
    for how in ({"timeout": 0.05}, {"blocking_timeout": 0.05}, {"blocking": False}):
        if connected:
            ann(lock.acquire)
            ann(lock.release)
        proxy.speaks.clear()
        with pytest.raises(
            RedisTimeoutError if kind == "Lock" else RedisError, match="in t|within"
        ):
            ann(lock.acquire, **how)
        assert ann(lambda: lock.token) is None
        # What arrives later is given back, long before the lease is over.
        proxy.speaks.set()
        world.wait_until_free(lock)
        if not connected:
            break
    ann(lock.acquire)
    ann(lock.check)
    ann(lock.release)
    world.wait_until_free(lock)


@pytest.mark.parametrize("kind", ["Lock"])
def test_a_server_that_falls_silent_under_a_waiter(world, ann, bob, proxy, lock):
    rival = world.rival()
    bob(rival.acquire)
    future = ann.start(lock.acquire, timeout=0.5)
    wait_until(lambda: world.waiting(lock) == 1 or future.done())
    proxy.speaks.clear()
    with contextlib.suppress(RedisTimeoutError):
        assert future.result(TTL) is False
    proxy.speaks.set()
    wait_until(lambda: not world.waiting(lock))
    bob(rival.release)
    world.wait_until_free(lock)


def test_asyncio_the_first_connection_by_a_url(proxy):
    async def main():
        proxy.speaks.clear()
        lock = AsyncLock("job", proxy.url + PATIENCE)
        with pytest.raises(RedisTimeoutError):
            await lock.acquire(timeout=0.05)

    asyncio.run(main())


@pytest.mark.parametrize("step", ["acquire", "release"])
def test_asyncio_a_cancellation(r, proxy, step):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url + PATIENCE) as client:
            lock = AsyncLock("job", client, LEASE)
            await lock.acquire()
            if step == "acquire":
                await lock.release()
            proxy.speaks.clear()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await getattr(lock, step)()
            assert lock.token is None
            proxy.speaks.set()
            await happened(lambda: is_free(r, lock))

    asyncio.run(main())


def test_a_waiter_waits_for_the_end_of_a_script_that_keeps_the_server_busy(monkeypatch):
    with PrivateServer() as server:
        lock = Lock("name", server.url)
        other = redis.Redis.from_url(server.url, socket_timeout=0.3, retry=None)
        other.config_set("busy-reply-threshold", 1)
        with pytest.raises(redis.TimeoutError):
            other.eval("while true do end", 0)

        def kill_the_script(seconds):
            with contextlib.suppress(redis.ResponseError):  # the second time there is none
                other.script_kill()
            return Pause(seconds)

        monkeypatch.setattr(waiting, "Pause", kill_the_script)
        assert lock.acquire(timeout=60)
