"""Slots of a real cluster that move all the time, as in the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import cluster_rig

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import redis


def mover_of(nodes: list[redis.Redis], slots: list[int], seed: int) -> cluster_rig.SlotMover:
    """Return what moves slots from one master to another."""
    return cluster_rig.SlotMover(list(map(_port_of, nodes)), slots, seed)


def moving(
    nodes: list[redis.Redis], slots: list[int], seed: int, *, at_once: bool = False
) -> AbstractContextManager[cluster_rig.SlotMover]:
    """Move slots in a thread all the time."""
    return cluster_rig.moving(list(map(_port_of, nodes)), slots, seed, at_once=at_once)


def _port_of(node: redis.Redis) -> int:
    return int(node.connection_pool.connection_kwargs["port"])
