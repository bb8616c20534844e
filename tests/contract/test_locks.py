"""The contract of locks over each kind, of threads and of asyncio, and on other servers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from contract.lock_backends import REFUSES, Backend, World
from contract.lock_contract import LockContract
from hand_clock import HandClock
from several import Several

if TYPE_CHECKING:
    from collections.abc import Iterator

    import servers


@pytest.fixture(scope="module")
def three() -> Iterator[Several]:
    with contextlib.ExitStack() as stack:
        yield Several(stack, 3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return HandClock(monkeypatch)


class TestLocks(LockContract):
    @pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
    def is_async(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    @pytest.fixture(params=REFUSES)
    def world(
        self,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        is_async: bool,
        valkey: str,
    ) -> Iterator[World]:
        monkeypatch.setattr("bloomlock.locks.redlock.PAUSES", (0.001, 0.02))
        several = request.param == "Redlock"
        urls = request.getfixturevalue("three").urls if several else [valkey]
        with contextlib.ExitStack() as stack:
            yield World(Backend(request.param, is_async), urls, stack)


class TestOtherServers(LockContract):
    @pytest.fixture(params=["redis62", "redis82"])
    def server(self, request: pytest.FixtureRequest, all_servers: servers.Running) -> str:
        return all_servers.url(request.param, bloom=False)

    @pytest.fixture(params=["Lock", "read"])
    def world(self, request: pytest.FixtureRequest, server: str) -> Iterator[World]:
        with contextlib.ExitStack() as stack:
            yield World(Backend(request.param, is_async=False), [server], stack)
