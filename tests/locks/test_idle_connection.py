"""The connection that is kept out of redis-py's pool, and what redis-py expects of it."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import redis
import servers
from private import PrivateServer
from redis.auth.token import SimpleToken

from bloomlock import BloomFilter, Lock
from bloomlock.runtime import redispy
from bloomlock.runtime._sync.driver import Driver

TOKEN = SimpleToken("second", (time.time() + 3600) * 1000, time.time() * 1000, {"oid": "rotated"})


@pytest.fixture
def lock(r):
    made = Lock("job", client=r)
    with made:
        pass
    return made


def idle(client):
    """Return the connection that is kept."""
    [(connection, _, _)] = Driver.of(client)._idle
    return connection


def use(lock):
    lock.acquire()
    lock.release()


def test_one_that_the_server_closed_is_not_used(monkeypatch):
    monkeypatch.setattr(redispy, "FRESH_SECONDS", 0.0)
    # By TCP: there the first write to a connection that the other end has closed succeeds.
    binary, port = servers.require_server("valkey"), servers.low_port()
    with (
        PrivateServer(binary=binary, port=port),
        redis.Redis(port=port) as client,
        redis.Redis(port=port) as other,
    ):
        items = BloomFilter("items", 1000, client=client)
        assert items.add("one")
        assert other.client_kill_filter(_type="normal", skipme=True)
        # An add is not repeated, so it would raise for a reply that is lost.
        assert items.add("two")


def test_a_credential_that_was_rotated_takes_effect(r, lock):
    r.execute_command("ACL", "SETUSER", "rotated", "on", ">second", "~*", "&*", "+@all")
    try:
        connection = idle(r)
        r.connection_pool.re_auth_callback(TOKEN)
        use(lock)
        assert idle(r) is connection
        assert connection._re_auth_token is None
        connection.send_command("ACL", "WHOAMI")
        assert connection.read_response() == b"rotated"
    finally:
        r.acl_deluser("rotated")


def test_a_child_of_fork_uses_none_of_its_parents(r, lock):
    connection = idle(r)
    held, done = threading.Event(), threading.Event()

    def hold():
        with r.connection_pool._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        status = 1
        signal.alarm(60)  # it would wait for a lock that no thread of its own has
        try:
            use(lock)
            status = 0 if idle(r) is not connection and connection._sock is not None else 2
        finally:
            os._exit(status)
    done.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert idle(r) is connection
    use(lock)


def test_a_pool_needs_no_hash(valkey):
    class Pool(redis.ConnectionPool):
        __hash__ = None

    with redis.Redis(connection_pool=Pool.from_url(valkey)) as client, Lock("job", client) as held:
        assert held.owned()
