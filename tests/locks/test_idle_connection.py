"""The connection that is kept out of redis-py's pool, and what redis-py expects of it."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import redis
import servers
from redis.auth.token import SimpleToken
from servers import wait_until

from bloomlock import BloomFilter, Lock
from bloomlock.runtime import threads
from bloomlock.runtime.threads import FRESH_SECONDS, threads_for
from bloomlock.server import PrivateServer

LONG = 60.0
TOKEN = SimpleToken("second", (time.time() + 3600) * 1000, time.time() * 1000, {"oid": "rotated"})


@pytest.fixture
def lock(r):
    made = Lock("job", client=r)
    with made:
        pass
    return made


def idle(client):
    """Return the connection that is kept."""
    [((_, connection), _)] = threads_for(client)._idle
    return connection


def use(lock):
    lock.acquire()
    lock.release()


def test_one_that_the_server_closed_is_not_used():
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
        time.sleep(2 * FRESH_SECONDS)
        # An add is not repeated, so it would raise for a reply that is lost.
        assert items.add("two")


@pytest.mark.skipif(int(redis.__version__.split(".")[0]) < 7, reason="marks came with redis-py 7")
def test_one_that_is_marked_for_a_reconnect_is_connected_anew(r, lock):
    connection = idle(r)
    before = connection._sock
    connection.mark_for_reconnect()
    use(lock)
    assert idle(r) is connection
    assert not connection.should_reconnect()
    assert connection._sock is not before


@pytest.mark.skipif(int(redis.__version__.split(".")[0]) < 7, reason="marks came with redis-py 7")
def test_one_that_is_marked_while_in_use_goes_back_at_once(r, lock):
    runtime = threads_for(r)
    lease = runtime._take(r.connection_pool)
    lease[1].mark_for_reconnect()
    runtime._give_back(lease)
    assert not runtime._idle
    assert lease[1]._sock is None


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


def test_it_goes_back_after_some_seconds_of_use(r, lock, monkeypatch):
    released = []
    dispatch = r.connection_pool._event_dispatcher.dispatch
    monkeypatch.setattr(
        r.connection_pool._event_dispatcher,
        "dispatch",
        lambda event: (released.append(event), dispatch(event)),
    )
    threads_for(r)._release_at = time.monotonic() + LONG
    use(lock)
    assert not released
    monkeypatch.setattr(threads, "KEPT_SECONDS", 0.0)
    threads_for(r)._release_at = time.monotonic()
    use(lock)
    wait_until(lambda: released)


def test_a_child_of_fork_uses_none_of_its_parents(r, lock):
    connection = idle(r)
    child = os.fork()
    if not child:
        status = 1
        try:
            use(lock)
            status = 0 if idle(r) is not connection and connection._sock is not None else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert idle(r) is connection
    use(lock)


def test_a_fork_while_another_thread_has_the_lock_of_the_pool(r, lock):
    held, over = threading.Event(), threading.Event()

    def hold():
        with r.connection_pool._lock:
            held.set()
            over.wait(LONG)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        try:
            use(lock)
        finally:
            os._exit(0)
    over.set()
    thread.join()
    ended = 0
    try:
        wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
        ended = child
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
