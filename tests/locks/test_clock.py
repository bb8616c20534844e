"""The server's clock is set back: fences rise all the same, and none is kept for ever."""

from __future__ import annotations

import pytest
from moved_clock import moved_server

from bloomlock import Lock, ReadWriteLock

BACK, REST = 600, 61


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A client of a server, and what sets its clock to some seconds from the true time."""
    with moved_server("valkey", tmp_path_factory.mktemp("server"), {}) as (client, move, _):
        yield client, move


@pytest.mark.parametrize("kind", ["lock", "read"])
def test_fences_rise_when_the_clock_is_set_back(moved, kind):
    client, move = moved
    client.flushall()
    lock = Lock("job", client) if kind == "lock" else ReadWriteLock("job", client).read
    fences, before = [], client.time()[0]
    for seconds in (0, -BACK, REST - BACK, 3 * REST - BACK, 0, -BACK):
        move(seconds)
        with lock:
            fences.append(lock.fence)
    assert client.time()[0] < before - BACK // 2, "the clock was set back"
    assert fences == sorted(set(fences))
    move(0)


def test_the_fence_is_forgotten_when_it_is_behind_the_clock(moved):
    client, move = moved
    client.flushall()
    lock = Lock("job", client, ttl=10)
    with lock:
        pass
    move(-BACK)
    with lock:
        pass
    assert 0 < client.pttl(f"{lock.key}:fence") <= 1000 * (BACK + 60)
    move(REST)
    assert not client.exists(f"{lock.key}:fence")
