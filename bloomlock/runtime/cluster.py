"""Slots of a cluster that move: who has them now, and what is sent again.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (MOVED, ASK, TRYAGAIN,
CLUSTERDOWN). A command that is refused so was not carried out, so it is sent again, even an update;
its neighbours in the same request may have been carried out.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.crc
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)

from bloomlock.clock import boot_clock
from bloomlock.commands import MULTI, encode_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Command, Replies

MOVING_SECONDS = 30.0
"""How long a request waits at most for a slot that moves."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
"""Between its tries."""
MARGIN_S = 0.2
"""A request gives up so much before the limit of its caller, which then gets the reason."""
DOWN_SECONDS = 1.0
"""How long a request waits for a cluster that has no server for a slot now."""
CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
ASKING = encode_command("ASKING")


def is_refused(reply: object) -> bool:
    """Return whether a cluster refused a command; MovedError is an AskError."""
    return isinstance(reply, (AskError, TryAgainError, ClusterDownError))


def refusal_of(replies: Replies) -> Exception | None:
    return next(filter(is_refused, replies), None)


def refused(commands: Sequence[Command], replies: Replies) -> list[int]:
    """Return the indices of what a cluster refused; a transaction is refused as a whole."""
    found = [i for i, reply in enumerate(replies) if is_refused(reply)]
    if found and MULTI in commands:
        start = commands.index(MULTI)
        if found[-1] >= start:
            found = [i for i in found if i < start] + [*range(start, len(commands))]
    return found


def with_asking(commands: Sequence[Command]) -> list[Command]:
    """Return the commands with ASKING before each one; a transaction, which is last, needs one."""
    asked: list[Command] = []
    for command in commands:
        asked += (command,) if MULTI in asked else (ASKING, command)
    return asked


class Pauses:
    """Pauses between the tries of one request: none before the second, then longer ones."""

    def __init__(self, until: float | None, *, waits: bool) -> None:
        self._began = boot_clock()
        latest = self._began + (MOVING_SECONDS if waits else 0.0)
        self._until = latest if until is None else min(until - MARGIN_S, latest)
        self._longest_s = 0.0

    def next_s(self, refusal: Exception) -> float | None:
        """Return the seconds to the next try; None if time is up, though not before the second."""
        if not self._longest_s:
            self._longest_s = SHORTEST_PAUSE_S
            return 0.0
        # Those that wait for the same slot do not come back at the same moment.
        pause_s = self._longest_s * random.uniform(0.5, 1.0)
        self._longest_s = min(2 * self._longest_s, LONGEST_PAUSE_S)
        until = self._until
        if isinstance(refusal, ClusterDownError):
            until = min(until, self._began + DOWN_SECONDS)
        return pause_s if boot_clock() + pause_s < until else None

    def explain(self, key: str, refusal: Exception) -> Exception:
        if isinstance(refusal, ClusterDownError):
            return refusal
        answer = type(refusal).__name__.removesuffix("Error").upper()
        return TryAgainError(
            f"the cluster moves the slot of key {key!r}, and did not end that within "
            f"{boot_clock() - self._began:.1f} s (its server answers {answer} {refusal}); the "
            "command was not carried out; try again when the slot has moved"
        )


def slot_of(key: str) -> int:
    return redis.crc.key_slot(key.encode())


def server_of_key(client: Any, key: str) -> str:
    """Return the name of the server of a cluster that has a key; empty if none or only one has."""
    if isinstance(client, CLUSTERS):
        with suppress(RedisError, RedisClusterException):
            return str(getattr(client.get_node_from_key(key), "name", ""))
    return ""


def source_of_key(cluster: Any, key: str) -> Any:
    return _source_of(cluster, cluster.get_node_from_key(key))


def source_of_address(cluster: Any, host: str, port: int) -> Any:
    node = cluster.get_node(host=host, port=port) if host else None
    return None if node is None else _source_of(cluster, node)


def _source_of(cluster: Any, node: Any) -> Any:
    # A node of an asyncio cluster has connections itself.
    is_async = isinstance(cluster, redis.asyncio.RedisCluster)
    return node if is_async else cluster.get_redis_connection(node).connection_pool


def note_moved(cluster: Any, error: MovedError) -> Any:
    manager = cluster.nodes_manager
    if hasattr(manager, "move_slot"):
        return manager.move_slot(error)
    manager.update_moved_exception(error)  # before redis-py 7
    manager.get_node_from_slot(error.slot_id)
    return None


async def async_note_moved(cluster: Any, error: MovedError) -> None:
    if (noted := note_moved(cluster, error)) is not None:
        await noted
