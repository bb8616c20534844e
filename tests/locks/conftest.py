"""Fixtures of the tests that run workers in processes of their own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import servers
from lock_chaos.forks import ForkServer
from lock_chaos.harness import Chaos
from lock_chaos.proxy import CuttingProxy

from bloomlock.locks import hold
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TTL = 0.5


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a hold of a minute five times a second, from its first `extend` on.

    So a test sees several renewals in a second, and none is late if the machine stands still.
    """
    monkeypatch.setattr(hold, "RENEWALS_PER_LEASE", 300)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a shell starts what runs in its background without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Start workers quickly."""
    with ForkServer() as made:
        yield made


@pytest.fixture(scope="session")
def chaos_server() -> Iterator[PrivateServer]:
    """Run a server that may be restarted and forgets everything then."""
    with PrivateServer(binary=servers.require_server("valkey")) as server:
        yield server


@pytest.fixture
def chaos(forks: ForkServer, chaos_server: PrivateServer, tmp_path: Path) -> Iterator[Chaos]:
    """Make a run whose locks have a lease of half a second."""
    with Chaos(forks, chaos_server.url, tmp_path, TTL) as made:
        yield made


@pytest.fixture
def cutting(chaos_server: PrivateServer) -> Iterator[CuttingProxy]:
    """Stand before that server, and cut nothing until told."""
    with CuttingProxy(chaos_server.url, lambda _name: "pass") as made:
        yield made
