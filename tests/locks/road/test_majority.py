"""Step 11: a majority of servers. One forgets what it granted, and there are two holders."""

from __future__ import annotations

import contextlib
import time

import pytest
import redis
from road.gate import LONG
from road.majority import DelayedRestart, Majority
from servers import require_server, wait_until

from bloomlock import LockError, Redlock
from bloomlock.server import PrivateServer

LEASE = 2.0
TESTS = 5
"""Below, each of which has servers of its own."""


@pytest.fixture(scope="module")
def spare():
    """Servers for each test, three at a time: all grow older than a lease while one waits."""
    with contextlib.ExitStack() as stack:
        binary = require_server("valkey")
        yield [
            [stack.enter_context(PrivateServer(binary=binary)) for _ in range(3)]
            for _ in range(TESTS)
        ]


@pytest.fixture
def three(spare):
    """Three independent servers that keep nothing, up for longer than a lease."""
    servers = spare.pop()
    clients = [redis.Redis.from_url(server.url) for server in servers]
    wait_until(lambda: all(uptime(client) > LEASE for client in clients))
    yield servers, clients
    for server in servers:
        server.stop()


def uptime(client):
    return client.info("server")["uptime_in_seconds"]


def acquired_after_a_restart(first, second, key, servers, clients):
    """`first` holds servers 0 and 1, and 1 restarts: does `second` get 1 and 2 meanwhile?

    Returns the answer, and after how many seconds at most it was given.
    """
    clients[2].set(key, "somebody else's", px=60_000)
    assert first.acquire(blocking=False) if isinstance(first, Redlock) else first.acquire()
    clients[2].delete(key)
    began = time.monotonic()
    servers[1].restart()
    clients[1].ping()
    got = second.acquire(blocking=False) if isinstance(second, Redlock) else second.acquire()
    return got, time.monotonic() - began


def test_a_server_that_forgot_gives_the_lock_to_a_second_holder(three):
    servers, clients = three
    # A lease far longer than the test, so that the first surely is a holder still.
    first, second = Majority(clients, "job", 60.0), Majority(clients, "job", 60.0)
    assert acquired_after_a_restart(first, second, "job", servers, clients)[0]
    assert first.held
    assert second.held


def test_a_restarted_server_that_abstains_makes_no_second_holder(three):
    servers, clients = three
    first, second = DelayedRestart(clients, "job", LEASE), DelayedRestart(clients, "job", LEASE)
    got, seconds = acquired_after_a_restart(first, second, "job", servers, clients)
    assert not got or seconds > LEASE
    wait_until(second.acquire, LONG)  # when it has been up for longer than a lease


def holds(lock):
    try:
        lock.check()
    except LockError:
        return False
    return True


@pytest.mark.parametrize("renew", [False, True])
def test_ours_has_no_second_holder_after_a_restart(three, renew):
    servers, clients = three
    first, second = (
        Redlock("job", clients=[server.url for server in servers], ttl=LEASE, renew=renew)
        for _ in range(2)
    )
    got, seconds = acquired_after_a_restart(first, second, first.key, servers, clients)
    assert not got or seconds > LEASE
    assert got or second.acquire(timeout=LONG)
    assert not holds(first)
    assert holds(second)
    second.release()


def test_ours_counts_the_servers_that_are_configured_not_those_that_answer(three):
    servers, _ = three
    lock = Redlock("job", clients=[server.url for server in servers], ttl=LEASE)
    servers[0].kill()
    with lock:
        assert holds(lock)
    servers[1].kill()
    with contextlib.suppress(LockError):
        assert not lock.acquire(blocking=False)
    assert not holds(lock)
