"""Servers of the tests of the locks, and the clock in the test's hand."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest
import servers
from contract.lock_backends import Backend, World
from hand_clock import HandClock
from lock_tools import WATCH_USER

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from people import Person


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock that leases are counted by."""
    return HandClock(monkeypatch)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a shell starts what runs in its background without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def watch_url() -> Iterator[str]:
    """URL of a server that forbids EVAL."""
    binary = servers.require_server("valkey")
    with PrivateServer(binary=binary, config={"user": list(WATCH_USER)}) as server:
        yield server.url


@pytest.fixture
def stoppable() -> Iterator[PrivateServer]:
    """A server that a test may stop or kill."""
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        yield server


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def world(request: pytest.FixtureRequest, valkey: str) -> Iterator[World]:
    """People who use a `Lock`, or an `AsyncLock`."""
    with contextlib.ExitStack() as stack:
        yield World(Backend("Lock", request.param), [valkey], stack)


@pytest.fixture
def ann(world: World) -> Person:
    """One of them."""
    return world.person()


@pytest.fixture
def bob(world: World) -> Person:
    """Another one."""
    return world.person()
