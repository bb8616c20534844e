"""The server's clock is set back: fences rise all the same, in each way a lock is operated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lock_tools import WATCH_USER
from moved_clock import moved_server

from bloomlock import Lock, ReadWriteLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

BACK, REST = 600, 61


@pytest.fixture(params=["valkey", "redis62", "watch"])
def moved(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[redis.Redis, Callable[[int], None]]]:
    """A client of a server, and what sets its clock to some seconds from the true time."""
    watch = request.param == "watch"
    kind = "valkey" if watch else request.param
    config = {"user": list(WATCH_USER)} if watch else {}
    with moved_server(kind, tmp_path, config) as (client, move, _):
        yield client, move


@pytest.mark.parametrize("kind", ["lock", "read"])
def test_fences_rise_when_the_clock_is_set_back(
    moved: tuple[redis.Redis, Callable[[int], None]], kind: str
) -> None:
    client, move = moved
    lock = Lock("job", client) if kind == "lock" else ReadWriteLock("job", client).read
    fences, before = [], client.time()[0]
    for seconds in (0, -BACK, REST - BACK, 3 * REST - BACK, 0, -BACK):
        move(seconds)
        with lock:
            fences.append(lock.fence)
    assert client.time()[0] < before - BACK // 2, "the clock was set back"
    assert fences == sorted(set(fences))


def test_the_fence_is_forgotten_when_it_is_behind_the_clock(
    moved: tuple[redis.Redis, Callable[[int], None]],
) -> None:
    client, move = moved
    lock = Lock("job", client, ttl=10)
    with lock:
        pass
    move(-BACK)
    with lock:
        pass
    assert 0 < client.pttl(f"{lock.key}:fence") <= 1000 * (BACK + 60)
    move(REST)
    assert not client.exists(f"{lock.key}:fence")
