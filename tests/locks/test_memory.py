"""A server that has no memory left: nobody gets a lock, and nobody loses one."""

from __future__ import annotations

import pytest
import redis
from lock_tools import LONG
from servers import wait_until

from bloomlock import Lock


@pytest.fixture
def full(client):
    """Let the server have no memory left; gives a function for that."""

    def fill():
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")

    yield fill
    client.config_set("maxmemory", "0")


@pytest.mark.usefixtures("often")
def test_a_full_server_takes_no_lock_from_its_holder(client, full):
    renewed = []
    lock = Lock("kept", client, LONG, observer=renewed.append)
    with lock:
        lock.extend()
        full()
        # What is left of the lease is less than what a renewal makes of it.
        client.pexpire(lock.key, 10_000)
        count = len(renewed)
        wait_until(lambda: len(renewed) >= count + 6)
        assert client.pttl(lock.key) > 10_000
        assert not lock.lost.is_set()
        lock.extend(10 * LONG)
        assert 9_000 * LONG < client.pttl(lock.key) <= 10_000 * LONG
        with pytest.raises(redis.exceptions.ResponseError, match="OOM|maxmemory"):
            Lock("another", client).acquire()
    assert client.exists(lock.key) == 0
