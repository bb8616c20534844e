"""Servers of the tests of the locks, and workers in processes of their own."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import redis
import servers
from lock_chaos.forks import ForkServer
from lock_chaos.harness import Chaos
from lock_tools import WATCH_USER
from proxy import Proxy

from bloomlock.locks import hold, session
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TTL = 0.5


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a hold of a minute 25 times a second, from its first `extend` on.

    So a test sees several renewals in no time, and none is late if the machine stands still.
    """
    for module in (hold, session):
        monkeypatch.setattr(module, "RENEWALS_PER_LEASE", 1500)


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
def chaos(
    forks: ForkServer, chaos_server: PrivateServer, tmp_path: Path, seed: int
) -> Iterator[Chaos]:
    """Make a run whose locks have a lease of half a second."""
    with Chaos(forks, chaos_server.url, tmp_path, TTL, seed) as made:
        yield made


@pytest.fixture
def cutting(chaos_server: PrivateServer) -> Iterator[Proxy]:
    """Stand before that server, and cut nothing until told."""
    with Proxy(chaos_server.url, pushes=True) as made:
        yield made


@pytest.fixture(scope="session")
def watch_url() -> Iterator[str]:
    """URL of a server that forbids EVAL."""
    binary = servers.require_server("valkey")
    with PrivateServer(binary=binary, config={"user": list(WATCH_USER)}) as server:
        yield server.url


@pytest.fixture(scope="session")
def urls(watch_url: str) -> Iterator[dict[str, str]]:
    """URLs of servers of each kind, started when they are first asked for."""
    with ExitStack() as stack:
        yield Started(stack, watch=watch_url)


class Started(dict[str, str]):
    """URLs by kind."""

    def __init__(self, stack: ExitStack, **urls: str) -> None:
        super().__init__(urls)
        self._stack = stack

    def __missing__(self, kind: str) -> str:
        binary = servers.require_server(kind)
        self[kind] = self._stack.enter_context(PrivateServer(binary=binary)).url
        return self[kind]


@pytest.fixture(params=["valkey", "redis7", "redis62", "watch"])
def any_url(request: pytest.FixtureRequest, urls: dict[str, str]) -> str:
    """URL of an empty server of each kind, and of one that forbids EVAL."""
    url = urls[request.param]
    with redis.Redis.from_url(url) as made:
        made.flushall()
    return url
