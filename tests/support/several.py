"""Several independent servers, which tests kill, stop and restart, and look into."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import redis
from private import PrivateServer
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import require_server

from bloomlock import AsyncRedlock, Redlock

if TYPE_CHECKING:
    import contextlib

LONG = 60.0
"""Bound against hanging, in seconds; nothing here takes a tenth of it."""
PATIENT = 10.0
"""A time-out for each server that no test waits for to the end."""
QUICK = 1.0
"""One that tests with a silent server do wait for."""


class Several:
    def __init__(self, stack: contextlib.ExitStack, count: int) -> None:
        binary = require_server("valkey")
        self.servers = [
            stack.enter_context(PrivateServer(binary=binary, port=0)) for _ in range(count)
        ]
        self.clients = [
            stack.enter_context(redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)))
            for url in self.urls
        ]
        self._stopped: list[int] = []

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def lock(self, name: str = "job", **options: Any) -> Redlock:
        """A lock over all of them, which counts servers that were just started."""
        return Redlock(name, clients=self.urls, **patient(options))

    def async_lock(self, **options: Any) -> AsyncRedlock:
        return AsyncRedlock("job", clients=self.urls, **patient(options))

    def tokens(self, key: str) -> list[str | None]:
        """What each server that runs has at the key; None also for one that does not run."""
        found = []
        for server, client in zip(self.servers, self.clients, strict=True):
            value = client.get(key) if server.running and server.pid not in self._stopped else None
            found.append(value.decode() if value else None)
        return found

    def held(self, key: str) -> int:
        return sum(token is not None for token in self.tokens(key))

    def stop(self, index: int) -> None:
        pid = self.servers[index].pid
        os.kill(pid, signal.SIGSTOP)
        self._stopped.append(pid)

    def resume(self) -> None:
        while self._stopped:
            os.kill(self._stopped.pop(), signal.SIGCONT)

    def renew(self) -> None:
        for server, client in zip(self.servers, self.clients, strict=True):
            server.start()
            client.flushall()


def patient(options: dict[str, Any]) -> dict[str, Any]:
    """Options with which a machine that is busy makes no server look dead.

    The lease is longer than any test waits, so what is gone was released.
    """
    server_timeout = min(PATIENT, options.get("ttl", PATIENT))
    return {"longest_ttl": 0, "server_timeout": server_timeout, "ttl": 5 * LONG} | options
