"""A filter takes little of its client's pool, and gives back what it took."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing

import pytest
import redis
import redis.asyncio
from servers import wait_until

from bloomlock import AsyncBloomFilter, AsyncLock, AsyncRedlock, BloomFilter
from bloomlock.commands import encode_command
from bloomlock.effects import Transaction
from bloomlock.runtime._async.driver import AsyncDriver
from bloomlock.runtime._sync.driver import Driver


@pytest.fixture
def pooled(valkey):
    with redis.Redis.from_url(valkey, max_connections=20) as made:
        made.flushall()
        yield made


def in_use(client):
    return len(client.connection_pool._in_use_connections)


def test_many_filters_over_one_client_share_one_idle_connection(pooled):
    made = [BloomFilter(f"f {number}", 100, client=pooled) for number in range(100)]
    for number, one in enumerate(made):
        assert one.add(str(number))
    assert in_use(pooled) == 1


def test_filters_that_are_forgotten_leave_one_connection_to_the_next(pooled):
    for number in range(30):
        assert BloomFilter("x", 1000, client=pooled).add(str(number))
        assert in_use(pooled) == 1
    made = BloomFilter("x", 1000, client=pooled)
    made.add("a")
    made.close()
    assert in_use(pooled) == 0
    assert made.add("works still")


def test_filters_of_asyncio_that_are_closed_or_forgotten(valkey):
    client = redis.asyncio.Redis.from_url(valkey, max_connections=20)

    async def run(first):
        for number in range(30):
            made = await AsyncBloomFilter("x", 1000, client=client)
            assert await made.add(f"{first} {number}")
            assert in_use(client) == 1
        if not first:
            async with made:
                await made.add("a")
            assert in_use(client) == 0
            await client.aclose()

    # The next loop finds a connection of the one before.
    for first in (True, False):
        asyncio.run(run(first))


has_marks = pytest.mark.skipif(
    not hasattr(redis.Connection, "mark_for_reconnect"), reason="since redis-py 7"
)


@has_marks
def test_an_idle_connection_that_redis_py_has_marked_goes_back_first(pooled):
    made = BloomFilter("x", 1000, client=pooled)
    [(connection, _, _)] = Driver.of(pooled)._idle
    connection.mark_for_reconnect()
    made.add("a")
    # Its release has taken the mark off.
    assert not connection.should_reconnect()


@has_marks
def test_an_idle_connection_of_asyncio_that_redis_py_has_marked_goes_back_first(r, valkey):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            made = await AsyncBloomFilter("x", 1000, client=client)
            await made.add("a")
            [(connection, _, _)] = AsyncDriver.of(client)._idle
            connection.mark_for_reconnect()
            await made.add("b")
            # It would be closed after that, had the item gone over it.
            assert "bitfield" in [each["cmd"] for each in r.client_list()]

    asyncio.run(run())


@pytest.mark.parametrize("kind", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_pool_of_one_connection_is_enough(valkey, kind):
    client = redis.Redis(connection_pool=kind.from_url(valkey, max_connections=1))
    client.flushall()
    for strategy in ("atomic", "lua", "transaction", "pipeline", "lock"):
        made = BloomFilter("x", 1000, client=client, strategy=strategy)
        assert made.add(strategy)
        assert made.exists(strategy)
        assert client.ping()
        made.clear()


def pending(admin):
    return [c for c in admin.client_list() if int(c["watch"]) or "x" in c["flags"]]


def assert_none_pending(admin):
    # Those that were closed the server may not have noticed yet.
    wait_until(lambda: not pending(admin), 30)


def watched(commands=(), error=None, looks=()):
    """A core with a transaction under WATCH, which may be given up by an error."""

    def decide(_replies):
        if error is not None:
            raise error
        return None, commands

    return (yield Transaction("k", [encode_command("WATCH", "k"), *looks], decide))


WAYS_OUT = {
    "done": lambda: watched([encode_command("SET", "k", 1)]),
    "nothing to do": watched,
    "error": lambda: watched(error=ValueError("x")),
    "stop": lambda: watched(error=StopIteration()),
    "interrupt": lambda: watched(error=KeyboardInterrupt()),
    "exit": lambda: watched(error=GeneratorExit()),
    "refused": lambda: watched([encode_command("NONE")]),
    "bad exec": lambda: watched([encode_command("EXEC", 1)]),
    "early exec": lambda: watched([encode_command("EXEC"), encode_command("WATCH", "k")]),
}
LEAVES = (ValueError, RuntimeError, KeyboardInterrupt, GeneratorExit)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_connection_goes_back_with_watch_or_multi(pooled, valkey, way):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            tasks = AsyncDriver.of(client)
            with contextlib.suppress(*LEAVES):
                await tasks.run(WAYS_OUT[way]())
            assert in_use(client) <= 1
            await tasks.close()
            assert in_use(client) == 0
            await asyncio.to_thread(assert_none_pending, pooled)

    with redis.Redis.from_url(valkey) as client:
        threads = Driver.of(client)
        with contextlib.suppress(*LEAVES):
            threads.run(WAYS_OUT[way]())
        assert_none_pending(pooled)
        assert in_use(client) <= 1
        threads.close()
        assert in_use(client) == 0
    asyncio.run(run())


def test_a_cancelled_task_leaves_no_watch_behind(pooled, valkey):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            looks = [encode_command("BLPOP", "nothing", 60)]
            task = asyncio.create_task(AsyncDriver.of(client).run(watched(looks=looks)))
            while not pending(pooled):  # noqa: ASYNC110 - it is on the server
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert in_use(client) == 0
            await asyncio.to_thread(assert_none_pending, pooled)

    asyncio.run(run())


def test_a_connection_that_does_not_end_in_time_fails_no_close(r, valkey, monkeypatch):
    closed = []

    async def aclose(client):
        await original(client)
        closed.append(client)
        raise redis.TimeoutError("Timed out closing connection after 1.0")

    original = redis.asyncio.Redis.aclose
    monkeypatch.setattr(redis.asyncio.Redis, "aclose", aclose)

    async def main():
        async with AsyncBloomFilter("closed", 1000, client=valkey) as made:
            assert await made.add("a")
        lock = AsyncLock("closed", client=valkey)
        assert await lock.acquire()
        await lock.release()
        await lock.close()
        quorum = AsyncRedlock("closed", clients=[valkey])
        await quorum.locked()
        await quorum.close()

    asyncio.run(main())
    # Looks at a server that was given by URL may have clients of their own.
    assert len(closed) >= 3


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["atomic", "lock"])
def test_a_forked_child_does_not_share_the_connection(r, valkey, strategy):
    made = BloomFilter("x", 10_000, 1e-9, client=valkey, strategy=strategy)
    made.add("before")
    context = multiprocessing.get_context("fork")
    asked, answers = context.Queue(), context.Queue()

    def child():
        for item in iter(asked.get, None):
            answers.put((made.add(item), made.exists(item), made.exists("before")))

    process = context.Process(target=child)
    process.start()
    for number in range(30):
        # In turn: the child, and then its parent.
        asked.put(f"child {number}")
        assert answers.get() == (True, True, True)
        assert made.add(f"child {number}") is False
        assert made.add(f"parent {number}") is True
    asked.put(None)
    process.join()
    assert process.exitcode == 0
