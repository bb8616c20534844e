"""A server that has no memory left: nobody gets a lock, and nobody loses one."""

from __future__ import annotations

import pytest
import redis

from bloomlock import Lock


@pytest.fixture
def full(client):
    """Let the server have no memory left; gives a function for that."""

    def fill():
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")

    yield fill
    client.config_set("maxmemory", "0")


def test_a_full_server_takes_no_lock_from_its_holder(client, full):
    renewed = []
    lock = Lock("kept", client, ttl=0.6, observer=renewed.append)
    with lock:
        full()
        count = len(renewed)
        while len(renewed) < count + 6:  # two leases; the test's own time-out bounds this
            assert not lock.lost.wait(0.05)
        lock.extend(30.0)
        assert 29_000 < client.pttl(lock.key) <= 30_000
        with pytest.raises(redis.exceptions.ResponseError, match="OOM|maxmemory"):
            Lock("another", client).acquire()
    assert client.exists(lock.key) == 0
