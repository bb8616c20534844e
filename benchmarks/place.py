"""Where a contender works: a server, and keys of its own on it."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from redis.connection import SSLConnection
from redis.connection import parse_url as _parse_url

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """What a contender is made from.

    Attributes:
        url: The server.
        prefix: Start of all keys of this run.
        name: What follows it, other for each contender.
        capacity: Distinct items to be ready for.
        error_rate: False-positive rate asked for at that fill.
    """

    url: str
    prefix: str
    name: str
    capacity: int
    error_rate: float

    @property
    def key(self) -> str:
        """The whole key, for contenders that have one."""
        return self.prefix + self.name


def parse_url(url: str) -> dict[str, Any]:
    """Return what a Redis URL says, as redis-py's connections take it.

    Raises:
        ValueError: If it is none.
    """
    return dict(_parse_url(url))  # type: ignore[no-untyped-call]  # redis-py left it untyped


def connect(url: str) -> redis.Redis:
    """Return a client as `redis.Redis(host=...)` makes it, with redis-py's default retries.

    `redis.Redis.from_url` does not set them (redis-py 8.1).
    """
    options: dict[str, Any] = parse_url(url)
    if "path" in options:
        options["unix_socket_path"] = options.pop("path")
    if issubclass(options.pop("connection_class", object), SSLConnection):
        options["ssl"] = True
    return redis.Redis(**options)


@contextmanager
def serving(
    url: str | None, module: Path | None = None, program: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Provide a server and a prefix for keys, and leave nothing behind.

    Args:
        url: A server to use; None starts a throw-away one on a unix socket.
        module: A module that the throw-away one is to load.
        program: What it is, in place of the Valkey that bloomlock embeds.

    Yields:
        The server's URL and the prefix.
    """
    prefix = f"bloomlock-benchmark:{secrets.token_hex(4)}:"
    if url is None:
        config = {"loadmodule": str(module)} if module else None
        with PrivateServer(binary=program, config=config) as server:
            yield server.url, prefix
        return
    with connect(url) as client:
        client.ping()
        try:
            yield url, prefix
        finally:
            forget(client, prefix)


def forget(client: redis.Redis, prefix: str) -> None:
    """Delete all keys that start with `prefix`."""
    for key in client.scan_iter(match=prefix + "*", count=1000):
        client.unlink(key)
