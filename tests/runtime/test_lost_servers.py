"""A server that was the master, and what was cancelled on the way to one: who is asked next."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from contract.backends import FILTERS, Place
from lock_tools import CancelledAt
from private import PrivateServer
from proxy import Proxy
from redis.exceptions import ReadOnlyError
from servers import wait_until

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.commands import call, encode_command
from bloomlock.effects import ConnectionLost, Request
from bloomlock.runtime._async.driver import AsyncDriver
from bloomlock.runtime._sync.driver import Driver

PING = encode_command("PING")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("bloomlock.commands.RETRY_PAUSES", (0.0, 0.0))


@pytest.fixture
def endpoint():
    """An address behind which the master was, is demoted, and another server is from then on."""
    with PrivateServer(port=0) as old, PrivateServer(port=0) as new, Proxy(old.url) as proxy:

        def fail_over():
            with redis.Redis.from_url(old.url) as admin:
                admin.replicaof("127.0.0.1", new.port)
            proxy.server = urlsplit(new.url).path

        yield proxy.url, fail_over


@pytest.fixture
def make():
    with contextlib.ExitStack() as stack:
        yield lambda backend, url, **more: Place(FILTERS[backend], url, stack).make(**more)


@pytest.mark.parametrize("backend", ["atomic", "lua", "transaction", "asyncio"])
def test_a_demoted_master_is_left_after_one_refusal(endpoint, make, backend):
    url, fail_over = endpoint
    made = make(backend, url, on_lost="recreate")
    assert made.add("a")
    fail_over()
    with pytest.raises(ReadOnlyError):
        made.add("b")
    assert made.add_many(["b", "c"]) == [True, True]


def test_the_connections_that_other_threads_had_are_left_too(endpoint):
    url, fail_over = endpoint
    with redis.Redis.from_url(url) as client:
        made = BloomFilter("x", 1000, client=client, on_lost="recreate")
        for each in [client.connection_pool.get_connection() for _ in range(3)]:
            client.connection_pool.release(each)
        fail_over()
        with pytest.raises(ReadOnlyError):
            made.add("b")
        Driver.of(client).close()
        used = client.connection_pool.get_connection()
        assert made.add_many(["b", "c"]) == [True, True]
        client.connection_pool.release(used)


@pytest.mark.parametrize("backend", ["atomic", "asyncio"])
def test_a_read_notices_a_demoted_master_and_asks_the_new_one(endpoint, make, backend, monkeypatch):
    for face in ("_sync", "_async"):
        monkeypatch.setattr(f"bloomlock.runtime.{face}.exchange.ROLE_SECONDS", 0.0)
    url, fail_over = endpoint
    made = make(backend, url, on_lost="recreate")
    assert made.add("a")
    assert made.exists("a")
    fail_over()
    # The replica that the old master became would say that it is there.
    assert not made.exists("a")
    assert made.exists_many(["a", "b"]) == [False, False]


async def until_done(awaited):
    return await awaited


class Own(redis.asyncio.UnixDomainSocketConnection):
    """One of a class of its own, which redis-py sends by."""


@pytest.mark.parametrize("kind", [redis.asyncio.UnixDomainSocketConnection, Own])
def test_a_cancellation_that_comes_as_a_step_of_a_request_ends_is_not_lost(valkey, kind):
    async def run():
        client = redis.asyncio.Redis.from_url(valkey, socket_timeout=60)
        client.connection_pool.connection_class = kind
        async with client:
            for number in itertools.count():
                run = AsyncDriver.of(client).run(call("a", PING))
                awaited = CancelledAt(run, number, late=True)
                task = asyncio.ensure_future(until_done(awaited))
                await asyncio.wait([task])
                assert task.cancelled() is awaited.reached
                if not awaited.reached:
                    break
                # The next one connects, too.
                await client.connection_pool.disconnect()
        assert number > 1

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

    monkeypatch.setattr(AsyncDriver, "_request", swallow)

    def core():
        for _ in range(2):
            with contextlib.suppress(ConnectionLost):
                yield Request("a", [PING])

    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            task = asyncio.ensure_future(AsyncDriver.of(client).run(core()))
            await asyncio.wait([task])
            assert task.cancelled()
            assert len(asked) == 1

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


def test_an_add_after_the_server_closed_an_idle_connection_is_sent_on_another(r, valkey):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            made = await AsyncBloomFilter("x", 1000, client=client)
            assert await made.add("a")
            # Nothing is awaited here, so the loop does not read that the connection was closed.
            r.client_kill_filter(_type="normal", skipme=True)
            wait_until(lambda: len(r.client_list(_type="normal")) == 1)
            return await made.add("b"), await made.add("b")

    assert asyncio.run(run()) == (True, False)
