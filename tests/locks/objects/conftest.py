"""Servers of the tests of the lock objects."""

from __future__ import annotations

from contextlib import ExitStack
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
