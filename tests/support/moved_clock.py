"""A server whose clock the test sets, by libfaketime."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import servers
from private import PrivateServer
from servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Stopped = tuple[redis.Redis, Callable[[int], None], str]

NEAR_S = 30
"""So near to the wanted time the clock counts as set."""


def library() -> Path:
    """Return libfaketime, which moves the clock of a program; skip without it, or fail in CI."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if found:
        return found[0]
    if os.environ.get("CI"):
        pytest.fail("this machine has no libfaketime")
    pytest.skip("this machine has no libfaketime")


@contextlib.contextmanager
def moved_server(
    kind: str, folder: Path, config: dict[str, Any] | None = None
) -> Iterator[Stopped]:
    """Run a server; yields a client, what moves its clock from the true time, and its URL.

    Args:
        kind: As for `require_server`.
        folder: Where its files may be.
        config: As for PrivateServer.
    """
    with _server_with_a_clock(kind, folder, config) as (client, write, url):

        def move(seconds: int) -> None:
            write(f"{seconds:+d}s")
            wait_until(lambda: abs(client.time()[0] - time.time() - seconds) < NEAR_S)

        yield client, move, url


@contextlib.contextmanager
def stopped_server(kind: str, folder: Path) -> Iterator[Stopped]:
    """Run a server whose clock stands still; yields a client, what sets the clock, and its URL.

    (Between two events the server counts on by itself, from some microseconds to milliseconds.)

    Args:
        kind: As for `require_server`.
        folder: Where its files may be.
    """
    with _server_with_a_clock(kind, folder, None) as (client, write, url):

        def stop_at(seconds: int) -> None:
            write(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)))
            wait_until(lambda: client.time()[0] == seconds)

        yield client, stop_at, url


@contextlib.contextmanager
def _server_with_a_clock(
    kind: str, folder: Path, config: dict[str, Any] | None
) -> Iterator[tuple[redis.Redis, Callable[[str], None], str]]:
    server = servers.require_server(kind)
    clock = folder / "clock"
    settings = {
        "LD_PRELOAD": library(),
        "FAKETIME_TIMESTAMP_FILE": clock,
        "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
        "TZ": "UTC",
    }
    program = folder / "server"
    exports = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items())
    program.write_text(f'#!/bin/sh\nexec env {exports} {shlex.quote(str(server))} "$@"\n')
    program.chmod(0o755)

    def write(what: str) -> None:
        # The server reads it at any moment.
        fresh = folder / "fresh"
        fresh.write_text(f"{what}\n")
        fresh.replace(clock)

    write("+0s")
    with (
        PrivateServer(binary=program, config=config or {}) as private,
        redis.Redis.from_url(private.url) as client,
    ):
        yield client, write, private.url
