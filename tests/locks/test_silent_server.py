"""A caller's time limit holds also if the server is silent, and leaves nothing behind.

The client waits for an hour: a limit that does not hold ends the test by pytest's time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import redis
import redis.asyncio
from contract.lock_backends import TTL
from lock_tools import happened, is_free, queue_of
from people import AsyncPerson, Loop, Person
from proxy import Proxy
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from servers import wait_until

from bloomlock import AsyncLock, AsyncRedlock, Lock, Redlock
from bloomlock.locks.protocol import waiting

HOUR = 3600.0
LEASE = 10 * TTL
"""What is left of a lock that nothing gives back."""
WAYS = {
    "timeout": {"timeout": 0.05},
    "blocking_timeout": {"blocking_timeout": 0.05},
    "not blocking": {"blocking": False},
}


class SilentProxy(Proxy):
    """Delivers until it falls silent: then it goes on to accept, and delivers and answers later."""

    def __init__(self, url):
        super().__init__(url, self._wait)
        self.speaks = threading.Event()
        self.speaks.set()

    def _wait(self, _name, _number):
        self.speaks.wait()
        return "pass"


@pytest.fixture
def proxy(valkey, r):
    with SilentProxy(valkey) as made:
        yield made
        made.speaks.set()


@pytest.fixture
def curt(monkeypatch):
    """Let a caller's second beyond its time limit be a tenth."""
    monkeypatch.setattr(waiting, "GRACE_SECONDS", 0.1)


def reach(kind, client):
    return [client] if kind is Redlock else client


@pytest.fixture(params=["threads", "asyncio"])
def far(request, proxy):
    """Somebody, and what makes a lock that reaches the server by the proxy."""
    if request.param == "threads":
        client, person = redis.Redis.from_url(proxy.url, socket_timeout=HOUR), Person()
        yield person, lambda kind=Lock, **options: kind("job", reach(kind, client), **options)
        person.end()
        client.close()
        return
    with Loop() as loop:
        client = redis.asyncio.Redis.from_url(proxy.url, socket_timeout=HOUR)
        person = AsyncPerson(loop.loop)
        kinds = {Lock: AsyncLock, Redlock: AsyncRedlock}
        yield (
            person,
            lambda kind=Lock, **options: kinds[kind]("job", reach(kind, client), **options),
        )
        person.end()
        loop.run(client.aclose())


@pytest.mark.usefixtures("curt")
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connects"])
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_acquire(r, proxy, far, how, connected):
    person, make = far
    lock = make(ttl=LEASE)
    if connected:
        person(lock.acquire)
        person(lock.release)
    proxy.speaks.clear()
    with pytest.raises(RedisTimeoutError, match="within the time limit"):
        person(lock.acquire, **how)
    assert person(lambda: lock.token) is None
    # What arrives later is given back, long before the lease is over.
    proxy.speaks.set()
    wait_until(lambda: is_free(r, lock))
    person(lock.acquire)
    person(lock.check)
    person(lock.release)
    wait_until(lambda: is_free(r, lock))


@pytest.mark.usefixtures("curt")
def test_redlock(r, proxy, far):
    person, make = far
    lock = make(Redlock, ttl=LEASE, longest_ttl=0)
    person(lock.acquire)
    person(lock.release)
    proxy.speaks.clear()
    for how in WAYS.values():
        with pytest.raises(RedisError):
            person(lock.acquire, **how)
    proxy.speaks.set()
    wait_until(lambda: is_free(r, lock))
    person(lock.close)


@pytest.mark.usefixtures("curt")
def test_a_server_that_falls_silent_under_a_waiter(r, proxy, far):
    person, make = far
    waiter = make(ttl=LEASE)
    with Lock("job", client=r):
        future = person.start(waiter.acquire, timeout=0.5)
        wait_until(lambda: queue_of(r, waiter) == 1 or future.done())
        proxy.speaks.clear()
        with contextlib.suppress(RedisTimeoutError):
            assert future.result(TTL) is False
        proxy.speaks.set()
        wait_until(lambda: not queue_of(r, waiter))
    wait_until(lambda: is_free(r, waiter))


@pytest.mark.usefixtures("curt")
def test_asyncio_the_first_connection_by_a_url(proxy):
    async def main():
        proxy.speaks.clear()
        lock = AsyncLock("job", f"{proxy.url}?socket_timeout={HOUR}")
        with pytest.raises(RedisTimeoutError):
            await lock.acquire(timeout=0.05)

    asyncio.run(main())


@pytest.mark.parametrize("step", ["acquire", "release"])
def test_asyncio_a_cancellation(r, proxy, step):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url, socket_timeout=HOUR) as client:
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
