"""A cluster of this machine."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from typing import TYPE_CHECKING, Any

import redis
from private import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SLOTS = 16384
START_SECONDS = 60.0
PORTS, WORKERS = 340, 8
"""Ports of each worker of a test run, and how many workers have ports of their own."""


@contextlib.contextmanager
def clustered(
    masters: int, binary: str | Path | None = None, more: Mapping[str, str] | None = None
) -> Iterator[list[int]]:
    """Run a cluster whose masters own equal parts of the slots; yields their ports.

    Args:
        masters: How many.
        binary: See PrivateServer.
        more: Further configuration of each.
    """
    config = {"cluster-enabled": "yes", "cluster-node-timeout": "60000", **(more or {})}
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(PrivateServer(binary=binary, port=low_port(), config=config))
            for _ in range(masters)
        ]
        ports = [server.port or 0 for server in servers]
        clients: list[Any] = [redis.Redis(port=port, decode_responses=True) for port in ports]
        for index, client in enumerate(clients):
            first, last = index * SLOTS // masters, (index + 1) * SLOTS // masters - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])
        deadline = time.monotonic() + START_SECONDS
        while not all(_is_whole(client, masters) for client in clients):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no cluster of {masters} masters in {START_SECONDS:.0f} s")
            time.sleep(0.01)
        yield ports


def _is_whole(client: Any, masters: int) -> bool:
    whole = client.cluster("info").get("cluster_state") == "ok"
    return whole and len(client.cluster("nodes")) == masters


def low_port() -> int:
    """Return a free port that leaves room for a cluster's own port 10,000 above it.

    Both are below those that connections are given (from 32,768 on), one of which may take what is
    left free while a server is restarted. And each parallel worker of a test run has ports of its
    own, as another may take one between here and the start of the server.
    """
    first = 20_000 + PORTS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS)
    while True:
        port = first + random.randrange(PORTS)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
