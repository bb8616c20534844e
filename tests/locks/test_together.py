"""Threads, tasks and processes that share one lock write in turn, though replies are lost."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
import redis
from contract.lock_backends import TTL
from proxy import HANDSHAKE, Proxy

from bloomlock import AsyncLock, Lock

ROUNDS = 15
LOST_EACH = 17
"""Of the commands of all each 17th is lost, so no step loses two in a row by itself."""


def lose(name, number):
    if name in HANDSHAKE or number % LOST_EACH:
        return "pass"
    return "before" if number % 2 else "after"


@pytest.mark.free_running
def test_each_turn_counts(r, valkey):
    """Each raises a number on the server in two commands; the sum is that of a fixed schedule."""
    r.set("number", 0)

    def raise_number():
        r.set("number", int(r.get("number")) + 1)

    with Proxy(valkey, lose) as proxy, redis.Redis.from_url(proxy.url) as client:
        lock = Lock("job", client, 10 * TTL)

        def work():
            for _ in range(ROUNDS):
                with lock:
                    raise_number()

        async def tasks():
            shared = AsyncLock("job", proxy.url, 10 * TTL)

            async def turns():
                for _ in range(ROUNDS):
                    async with shared:
                        seen = int(r.get("number"))
                        await asyncio.sleep(0)
                        r.set("number", seen + 1)

            await asyncio.gather(turns(), turns(), turns())
            await shared.close()

        child = os.fork()
        if not child:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        works = [work, work, work, lambda: asyncio.run(tasks())]
        threads = [threading.Thread(target=each) for each in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert os.waitpid(child, 0)[1] == 0
        assert int(r.get("number")) == 7 * ROUNDS
        assert proxy.lost
        lock.close()
    # What is left after a lost reply in a closed client ends with its lease: nothing may be left.
    assert not r.exists(lock.key, f"{lock.key}:queue")
