"""replicas=n: a grant counts only when n replicas have it, else it is given back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import ExitStack

import pytest
import redis
import redis.asyncio
import servers
from lock_tools import WATCH_USER, is_free, queue_of
from servers import wait_until

from bloomlock import AsyncLock, Lock, LockError, QuorumError
from bloomlock.server import PrivateServer


@pytest.fixture(scope="module", params=["scripts", "watch"])
def pair(request):
    """A master and its only replica."""
    binary = servers.require_server("valkey")
    config = {"repl-diskless-sync-delay": "0"}
    if request.param == "watch":
        config["user"] = list(WATCH_USER)
    with ExitStack() as stack:
        master = stack.enter_context(PrivateServer(binary=binary, port=0, config=config))
        follow = {"replicaof": ["127.0.0.1", master.port]}
        replica = stack.enter_context(PrivateServer(binary=binary, port=0, config=follow))
        yield master, replica


@pytest.fixture
def r(pair):
    master, replica = pair
    with redis.Redis.from_url(master.url) as made:
        if not replica.running:
            replica.start()
        made.flushall()
        wait_until(lambda: made.execute_command("WAIT", 1, 100) == 1)
        yield made


def test_acknowledged(pair, r):
    with Lock("job", client=r, replicas=1) as lock:
        assert lock.owned()
        with redis.Redis.from_url(pair[1].url) as second:
            assert second.get(lock.key) == lock.token.encode()
        fence = lock.fence
    with Lock("job", client=r, replicas=1) as lock:
        assert lock.fence > fence
    assert is_free(r, lock)


def test_too_few_acknowledge(pair, r):
    lock = Lock("job", client=r, replicas=2)
    with pytest.raises(QuorumError, match="'job' was acknowledged by 1 of 2 replicas"):
        lock.acquire()
    assert lock.token is None
    assert is_free(r, lock)
    assert isinstance(QuorumError(""), LockError)


@pytest.mark.parametrize("dead", [False, True], ids=["silent", "dead"])
def test_a_replica_that_does_not_answer(pair, r, dead):
    _, replica = pair
    lock = Lock("job", client=r, replicas=1)
    lock.acquire()
    lock.release()
    if dead:
        replica.kill()
    else:
        os.kill(replica.pid, signal.SIGSTOP)
    try:
        with pytest.raises(QuorumError, match="by 0 of 1 replicas within 1 s and given back"):
            lock.acquire()
        assert lock.token is None
        assert is_free(r, lock)
        with Lock("job", client=r) as content_with_less:
            assert content_with_less.owned()
    finally:
        if not dead:
            os.kill(replica.pid, signal.SIGCONT)
    if dead:
        replica.start()
    wait_until(lambda: r.execute_command("WAIT", 1, 100) == 1)
    with lock:
        assert lock.owned()


def test_what_was_handed_over_is_confirmed_as_well(pair, r):
    master, _ = pair
    holder = Lock("job", client=r)
    holder.acquire()
    found = []

    def work(replicas):
        with redis.Redis.from_url(master.url) as client:
            lock = Lock("job", client=client, replicas=replicas)
            try:
                with lock:
                    found.append(lock.owned())
            except QuorumError:
                found.append("too few")

    threads = []
    for number, replicas in enumerate((2, 1)):
        threads.append(threading.Thread(target=work, args=(replicas,)))
        threads[-1].start()
        wait_until(lambda number=number: queue_of(r, holder) == number + 1)
    holder.release()
    for thread in threads:
        thread.join(60)
    assert sorted(found, key=str) == [True, "too few"]
    assert is_free(r, holder)


def test_asyncio(pair, r):
    async def main():
        async with redis.asyncio.Redis.from_url(pair[0].url) as client:
            async with AsyncLock("job", client=client, replicas=1) as lock:
                assert await lock.owned()
            lock = AsyncLock("job", client=client, replicas=2)
            with pytest.raises(QuorumError):
                await lock.acquire()
            assert lock.token is None
        assert is_free(r, lock)

    asyncio.run(main())
