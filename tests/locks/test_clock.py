"""The server's clock is set back: fences rise all the same, in each way a lock is operated."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
import servers
from lock_tools import WATCH_USER
from servers import wait_until

from bloomlock import Lock, ReadWriteLock
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACK, REST = 600, 61


def library() -> Path:
    """Return libfaketime, which moves the clock of a program; skip without it, or fail in CI."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if found:
        return found[0]
    if os.environ.get("CI"):
        pytest.fail("this machine has no libfaketime")
    pytest.skip("this machine has no libfaketime")


@pytest.fixture(params=["valkey", "redis62", "watch"])
def moved(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[redis.Redis, Callable[[int], None]]]:
    """A client of a server, and what sets its clock to some seconds from the true time."""
    watch = request.param == "watch"
    server = servers.require_server("valkey" if watch else request.param)
    ahead = tmp_path / "ahead"
    settings = {
        "LD_PRELOAD": library(),
        "FAKETIME_TIMESTAMP_FILE": ahead,
        "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
    }
    program = tmp_path / "server"
    exports = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items())
    program.write_text(f'#!/bin/sh\nexec env {exports} {shlex.quote(str(server))} "$@"\n')
    program.chmod(0o755)

    def write(seconds: int) -> None:
        # The server reads it at any moment.
        fresh = tmp_path / "fresh"
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.replace(ahead)

    write(0)
    config = {"user": list(WATCH_USER)} if watch else {}
    with (
        PrivateServer(binary=program, config=config) as private,
        redis.Redis.from_url(private.url) as client,
    ):

        def move(seconds: int) -> None:
            write(seconds)
            wait_until(lambda: abs(client.time()[0] - time.time() - seconds) < REST // 2)

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
