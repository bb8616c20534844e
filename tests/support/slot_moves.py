"""Slots of a real cluster that move from one master to another, key by key."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Sequence

MIGRATE_TIMEOUT_MS = 10_000


class SlotMover:
    """Moves slots from one master to another.

    Args:
        nodes: Clients of the masters, on this machine.
        slots: What is moved.
        seed: Of where they go and the pauses.

    Attributes:
        slots: What is moved.
        moves: How often a slot was moved.
    """

    def __init__(self, nodes: Sequence[Any], slots: Sequence[int], seed: int) -> None:
        self.slots = list(slots)
        self.moves = 0
        self._ports = [int(node.connection_pool.connection_kwargs["port"]) for node in nodes]
        self._nodes: list[Any] = [redis.Redis(port=port) for port in self._ports]
        self._ids = [node.execute_command("CLUSTER", "MYID") for node in self._nodes]
        self._random = random.Random(seed)
        masters = range(len(self._nodes))
        self._owners = {
            slot: next(index for index in masters if self._owns(index, slot)) for slot in self.slots
        }

    def port_of(self, slot: int) -> int:
        return self._ports[self._owners[slot]]

    def move(self, slot: int) -> None:
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
