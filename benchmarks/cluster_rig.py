"""Clusters of this machine, and what moves their slots from server to server all the time."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import redis
from redis.cluster import RedisCluster

from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SLOTS = 16384
MIGRATE_TIMEOUT_MS = 10_000
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


def client_of(port: int) -> RedisCluster:
    """Return a client of a cluster, from the port of one of its servers."""
    return RedisCluster(host="127.0.0.1", port=port)


def cpu_seconds(clients: Sequence[redis.Redis]) -> float:
    """Return the processor seconds that servers have spent."""
    fields: list[Any] = [client.info("cpu") for client in clients]
    return sum(float(each["used_cpu_user"] + each["used_cpu_sys"]) for each in fields)


def _is_whole(client: redis.Redis, masters: int) -> bool:
    whole: Any = client.cluster("info")
    nodes: Any = client.cluster("nodes")
    return whole.get("cluster_state") == "ok" and len(nodes) == masters


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


class SlotMover:
    """Moves slots from one master to another.

    Args:
        ports: Of the masters, on this machine.
        slots: What is moved.
        seed: Of the order and the pauses.
        rest_s: How long no slot moves between two moves, in the mean.
        at_once: Whether each moves as a whole, and not key by key.

    Attributes:
        slots: What is moved.
        moves: How often a slot was moved.
    """

    def __init__(
        self,
        ports: Sequence[int],
        slots: Sequence[int],
        seed: int,
        *,
        rest_s: float = 0.03,
        at_once: bool = False,
    ) -> None:
        self.slots = list(slots)
        self.moves = 0
        self._ports = list(ports)
        self._nodes: list[Any] = [redis.Redis(port=port) for port in self._ports]
        self._ids = [node.execute_command("CLUSTER", "MYID") for node in self._nodes]
        self._random = random.Random(seed)
        self._rest_s = rest_s
        self._move = self.move_at_once if at_once else self.move
        masters = range(len(self._nodes))
        self._owners = {
            slot: next(index for index in masters if self._owns(index, slot)) for slot in self.slots
        }

    def run(self, stop: threading.Event) -> None:
        """Move one slot after the other until it is stopped; no slot is left half moved."""
        while not stop.is_set():
            self._move(self._random.choice(self.slots))
            time.sleep(self._random.uniform(0, 2 * self._rest_s))

    def move_at_once(self, slot: int) -> None:
        """Move a slot as a whole, as Valkey does it from 9.0 on."""
        old = self._owners[slot]
        new = self._random.choice([i for i in range(len(self._nodes)) if i != old])
        part = ("SLOTSRANGE", slot, slot)
        self._nodes[old].execute_command("CLUSTER", "MIGRATESLOTS", *part, "NODE", self._ids[new])
        deadline = time.monotonic() + START_SECONDS
        while not self._owns(new, slot):
            if time.monotonic() > deadline:
                raise TimeoutError(f"slot {slot} was not moved in {START_SECONDS:.0f} s")
            time.sleep(0.005)
        self._owners[slot] = new
        self.moves += 1

    def move(self, slot: int) -> None:
        """Move a slot with all its keys, one by one."""
        new = self.begin(slot)
        while self.move_keys(slot, new):
            pass
        self.finish(slot, new)

    def begin(self, slot: int) -> int:
        """Begin to move a slot; return where to."""
        old = self._owners[slot]
        new = self._random.choice([i for i in range(len(self._nodes)) if i != old])
        self._set_slot(new, slot, "IMPORTING", old)
        self._set_slot(old, slot, "MIGRATING", new)
        return new

    def move_keys(self, slot: int, new: int, most: int = 100) -> int:
        """Move some keys of a slot one by one; return how many there were."""
        old = self._nodes[self._owners[slot]]
        keys: Any = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, most)
        self._random.shuffle(keys)
        for key in keys:
            to = ("127.0.0.1", self._ports[new], key, 0, MIGRATE_TIMEOUT_MS)
            old.execute_command("MIGRATE", *to)
            time.sleep(self._random.uniform(0, 0.002))
        return len(keys)

    def finish(self, slot: int, new: int) -> None:
        """End a move of which all keys are there."""
        # The new owner first: the other way round no server would own the slot for a moment.
        for node in (new, *(i for i in range(len(self._nodes)) if i != new)):
            self._set_slot(node, slot, "NODE", new)
        self._owners[slot] = new
        self.moves += 1

    def _set_slot(self, node: int, slot: int, what: str, other: int) -> None:
        self._nodes[node].execute_command("CLUSTER", "SETSLOT", slot, what, self._ids[other])

    def _owns(self, index: int, slot: int) -> bool:
        nodes: Any = self._nodes[index].cluster("nodes")
        (mine,) = (each for each in nodes.values() if "myself" in each["flags"])
        return any(int(part[0]) <= slot <= int(part[-1]) for part in mine["slots"])


@contextlib.contextmanager
def moving(
    ports: Sequence[int], slots: Sequence[int], seed: int, *, at_once: bool = False
) -> Iterator[SlotMover]:
    """Move slots in a thread all the time."""
    mover, stop = SlotMover(ports, slots, seed, at_once=at_once), threading.Event()
    failed: list[Exception] = []

    def run() -> None:
        try:
            mover.run(stop)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield mover
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
