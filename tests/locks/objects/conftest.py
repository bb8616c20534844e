"""Servers of the tests of the lock objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
import servers
from locks.objects.tools import WATCH_USER

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def r(valkey: str) -> Iterator[redis.Redis]:
    """A client of an empty Valkey."""
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        yield made


@pytest.fixture(scope="session")
def watch_url() -> Iterator[str]:
    """URL of a server that forbids EVAL."""
    binary = servers.require_server("valkey")
    with PrivateServer(binary=binary, config={"user": list(WATCH_USER)}) as server:
        yield server.url


@pytest.fixture(params=["valkey", "redis7", "redis62", "watch"])
def any_url(request: pytest.FixtureRequest, watch_url: str) -> Iterator[str]:
    """URL of an empty server of each kind, and of one that forbids EVAL."""
    if request.param == "watch":
        url = watch_url
        with redis.Redis.from_url(url) as made:
            made.flushall()
        yield url
        return
    with PrivateServer(binary=servers.require_server(request.param)) as server:
        yield server.url
