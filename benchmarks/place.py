"""Where a contender works: a server, keys of its own on it, and what the server has."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import redis
from redis.connection import SSLConnection
from redis.connection import parse_url as _parse_url

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .contenders import Entry


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


def sort_out(entries: Iterable[Entry], url: str) -> tuple[list[Entry], list[dict[str, str]]]:
    """Part the contenders that can be measured from those that cannot.

    Args:
        entries: All that are wanted.
        url: The server.

    Returns:
        Those that can, in order, and of the others name, title and what is missing.
    """
    there, missing = [], []
    for entry in entries:
        why = _missing(entry, url)
        if why:
            missing.append({"contender": entry.name, "title": entry.title, "why": why})
        else:
            there.append(entry)
    return there, missing


def _missing(entry: Entry, url: str) -> str:
    kind, _, name = entry.needs.partition(":")
    if kind == "package" and find_spec(name) is None:
        return f"{name} is not installed"
    if kind == "command" and not _has_command(url, name):
        return f"the server has no {name}"
    return ""


def _has_command(url: str, name: str) -> bool:
    with connect(url) as client:
        known: Any = client.command()
    return name.lower() in known
