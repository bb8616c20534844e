"""Servers of the tests of the locks, and the clock in the test's hand."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest
import redis
import servers
from contract.lock_backends import Backend, World
from hand_clock import HandClock
from private import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from people import Person

PASSWORD = "of a server that lives as long as the test"  # noqa: S105 - see there


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return HandClock(monkeypatch)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a shell starts what runs in its background without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def stoppable() -> Iterator[PrivateServer]:
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        yield server


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def world(request: pytest.FixtureRequest, valkey: str) -> Iterator[World]:
    """People who use a `Lock`, or an `AsyncLock`."""
    with contextlib.ExitStack() as stack:
        yield World(Backend("Lock", request.param), [valkey], stack)


@pytest.fixture
def ann(world: World) -> Person:
    return world.person()


@pytest.fixture
def bob(world: World) -> Person:
    return world.person()


@pytest.fixture
def as_user(r: redis.Redis, valkey: str) -> Iterator[Callable[..., redis.Redis]]:
    """Make a client of a user who may do everything but what is named."""
    opened: list[tuple[str, redis.Redis]] = []

    def make(*rules: str) -> redis.Redis:
        name = f"user{len(opened)}"
        r.execute_command(
            "ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all", *rules
        )
        made = redis.Redis.from_url(valkey, username=name, password=PASSWORD)
        opened.append((name, made))
        return made

    yield make
    for name, made in opened:
        made.close()
        r.acl_deluser(name)
