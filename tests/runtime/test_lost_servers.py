"""A server that was the master, and what was cancelled on the way to one: who is asked next."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from lock_tools import CancelledAt
from private import PrivateServer
from proxy import Proxy
from redis.exceptions import ReadOnlyError
from servers import wait_until

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.commands import encode_command
from bloomlock.effects import ConnectionLost, Request
from bloomlock.runtime import connections, redispy
from bloomlock.runtime.tasks import Tasks, tasks_for
from bloomlock.runtime.threads import threads_for

PING = encode_command("PING")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("bloomlock.delivery.RETRY_PAUSES", (0.0, 0.0))


@pytest.fixture
def endpoint():
    """An address behind which the master was, is demoted, and another server is from then on."""
    with PrivateServer(port=0) as old, PrivateServer(port=0) as new, Proxy(old.url) as proxy:

        def fail_over():
            with redis.Redis.from_url(old.url) as admin:
                admin.replicaof("127.0.0.1", new.port)
            proxy.server = urlsplit(new.url).path

        yield proxy.url, fail_over


@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction"])
def test_a_demoted_master_is_left_after_one_refusal(endpoint, strategy):
    url, fail_over = endpoint
    with redis.Redis.from_url(url) as client:
        options = {"on_lost": "recreate", "strategy": strategy}
        made = BloomFilter("x", 1000, client=client, **options)
        others = [client.connection_pool.get_connection() for _ in range(3)]
        for each in others:
            client.connection_pool.release(each)
        assert made.add("a")
        fail_over()
        with pytest.raises(ReadOnlyError):
            made.add("b")
        # Nor are the connections used that other threads had.
        threads_for(client).close()
        used = client.connection_pool.get_connection()
        assert made.add_many(["b", "c"]) == [True, True]
        client.connection_pool.release(used)


def test_a_demoted_master_is_left_in_asyncio(endpoint):
    url, fail_over = endpoint

    async def run():
        async with redis.asyncio.Redis.from_url(url) as client:
            made = await AsyncBloomFilter("x", 1000, client=client, on_lost="recreate")
            assert all(await asyncio.gather(*(made.add_many([str(n)]) for n in range(5))))
            fail_over()
            with pytest.raises(ReadOnlyError):
                await made.add("b")
            assert await made.add_many(["b", "c"]) == [True, True]

    asyncio.run(run())


async def until_done(awaited):
    return await awaited


class Own(redis.asyncio.UnixDomainSocketConnection):
    """One of a class of its own, which redis-py sends by."""


@pytest.mark.parametrize("kind", [redis.asyncio.UnixDomainSocketConnection, Own])
def test_a_cancellation_that_comes_as_the_bytes_are_written_is_none_that_is_lost(valkey, kind):
    async def run():
        client = redis.asyncio.Redis.from_url(valkey, socket_timeout=60)
        client.connection_pool.connection_class = kind
        async with client:
            made = await connections.async_get_connection(client.connection_pool)
            awaited = CancelledAt(redispy.async_send(made, PING), 0, late=True)
            task = asyncio.ensure_future(until_done(awaited))
            await asyncio.wait([task])
            assert task.cancelled() is awaited.reached
            await redispy.async_close_quietly(made)
            await connections.async_release(client.connection_pool, made)

    asyncio.run(run())


def test_nothing_is_sent_again_after_a_cancellation_that_was_swallowed(valkey, monkeypatch):
    asked = []

    async def swallow(_, request, until=None):
        asked.append(request)
        asyncio.current_task().cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise ConnectionLost(redis.ConnectionError(), sent=True, replies=[]) from None

    monkeypatch.setattr(Tasks, "_request", swallow)

    def core():
        for _ in range(2):
            with contextlib.suppress(ConnectionLost):
                yield Request("a", [PING])

    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            task = asyncio.ensure_future(tasks_for(client).run(core()))
            await asyncio.wait([task])
            assert task.cancelled()
            assert len(asked) == 1

    asyncio.run(run())


def test_a_read_notices_a_demoted_master_and_asks_the_new_one(endpoint, monkeypatch):
    monkeypatch.setattr("bloomlock.runtime._sync.exchange.ROLE_SECONDS", 0.0)
    url, fail_over = endpoint
    with redis.Redis.from_url(url) as client:
        made = BloomFilter("x", 1000, client=client, on_lost="recreate")
        assert made.add("a")
        assert made.exists("a")
        fail_over()
        # The replica that the old master became would say that it is there.
        assert not made.exists("a")
        assert made.exists_many(["a", "b"]) == [False, False]


def test_a_read_of_asyncio_notices_a_demoted_master(endpoint, monkeypatch):
    monkeypatch.setattr("bloomlock.runtime._async.exchange.ROLE_SECONDS", 0.0)
    url, fail_over = endpoint

    async def run():
        async with redis.asyncio.Redis.from_url(url) as client:
            made = await AsyncBloomFilter("x", 1000, client=client, on_lost="recreate")
            assert await made.add("a")
            assert await made.exists_many(["a", "b"]) == [True, False]
            fail_over()
            assert await made.exists_many(["a", "b"]) == [False, False]
            assert not await made.exists("a")

    asyncio.run(run())


def test_a_demoted_master_that_the_address_still_names_answers_no_read(monkeypatch):
    monkeypatch.setattr("bloomlock.runtime._sync.exchange.ROLE_SECONDS", 0.0)
    with (
        PrivateServer(port=0) as old,
        PrivateServer(port=0) as new,
        redis.Redis.from_url(old.url, protocol=2) as client,
        redis.Redis.from_url(new.url) as other,
    ):
        made = BloomFilter("x", 1000, client=client)
        made.add("a")
        other.replicaof("127.0.0.1", old.port)
        wait_until(lambda: other.exists("bloomlock:{x}:bits"))
        # A client that only ever asked a replica is meant to.
        assert BloomFilter("x", 1000, client=other).exists("a")
        other.replicaof("NO", "ONE")
        client.replicaof("127.0.0.1", new.port)
        with pytest.raises(ReadOnlyError, match="was the master and is a replica now"):
            made.exists("a")
