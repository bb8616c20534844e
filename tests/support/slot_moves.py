"""Moves slots of a real cluster from server to server, key by key, all the time."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING

import redis

if TYPE_CHECKING:
    from collections.abc import Iterator

MIGRATE_TIMEOUT_MS = 10_000


class SlotMover:
    """Moves slots from one master to another.

    Args:
        nodes: A client of each master, on this machine.
        slots: What is moved.
        seed: Of the order and the pauses.
        rest_s: How long no slot moves between two moves, in the mean.

    Attributes:
        moves: How often a slot was moved.
    """

    def __init__(
        self, nodes: list[redis.Redis], slots: list[int], seed: int, rest_s: float = 0.03
    ) -> None:
        self.slots = slots
        self.moves = 0
        self._ports = [node.connection_pool.connection_kwargs["port"] for node in nodes]
        self._nodes = [redis.Redis(port=port) for port in self._ports]
        self._ids = [node.execute_command("CLUSTER", "MYID") for node in self._nodes]
        self._random = random.Random(seed)
        self._rest_s = rest_s
        self._owners = {slot: self._find_owner(slot) for slot in slots}

    def run(self, stop: threading.Event) -> None:
        """Move one slot after the other until it is stopped; no slot is left half moved."""
        while not stop.is_set():
            self.move(self._random.choice(self.slots))
            time.sleep(self._random.uniform(0, 2 * self._rest_s))

    def move(self, slot: int) -> None:
        """Move a slot with all its keys."""
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
        keys = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, most)
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

    def _find_owner(self, slot: int) -> int:
        for index, node in enumerate(self._nodes):
            (mine,) = (n for n in node.cluster("nodes").values() if "myself" in n["flags"])
            if any(int(part[0]) <= slot <= int(part[-1]) for part in mine["slots"]):
                return index
        raise AssertionError(slot)


@contextlib.contextmanager
def moving(
    nodes: list[redis.Redis], slots: list[int], seed: int, rest_s: float = 0.03
) -> Iterator[SlotMover]:
    """Move slots in a thread all the time."""
    mover, stop = SlotMover(nodes, slots, seed, rest_s), threading.Event()
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
        thread.join(60)
    assert not failed, failed
