"""Slots of a cluster that move: who has them now, and what is sent again.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (MOVED, ASK, TRYAGAIN,
CLUSTERDOWN). A command that is refused so was not carried out, so it is sent again, even an update;
its neighbours in the same request may have been carried out.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

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

from bloomlock.commands import MULTI, encode_command
from bloomlock.effects import ConnectionLost, Pause
from bloomlock.refusals import is_slot_refusal

from .clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from bloomlock.effects import Command, Replies

MOVING_SECONDS = 30.0
"""How long a request waits at most for a slot that moves."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
"""Between its tries."""
MARGIN_S = 0.2
"""A request gives up so much before the limit of its caller, which then gets the reason."""
DOWN_SECONDS = 1.0
"""How long a request waits for a cluster that has no server for a slot now."""
MAX_REDIRECTS = 5
"""Redirections that are followed without a pause."""
CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_ASKING = encode_command("ASKING")


class Sent(NamedTuple):
    """A request that was answered, with any of its keys and a reply for each of its commands."""

    key: str
    commands: Sequence[Command]
    replies: Replies

    def refused(self) -> list[int]:
        """Return the indices of what a cluster refused; a transaction is refused as a whole."""
        found = [i for i, reply in enumerate(self.replies) if is_refused(reply)]
        if found and MULTI in self.commands:
            start = self.commands.index(MULTI)
            if found[-1] >= start:
                found = [i for i in found if i < start] + [*range(start, len(self.commands))]
        return found


class Again(NamedTuple):
    """What is sent again; answered by its replies, or by the ConnectionLost that came instead."""

    key: str
    refusal: Exception
    commands: list[Command]


def is_refused(reply: object) -> bool:
    return is_slot_refusal(reply) or isinstance(reply, ClusterDownError)


def is_ask(error: object) -> bool:
    return isinstance(error, AskError) and not isinstance(error, MovedError)


def follow(sent: Sent, until: float | None, *, waits: bool) -> Generator[Any, Any, None]:
    """Replace in `sent` what a cluster refused by what comes of sending it again.

    Some redirections are followed at once; further ones, TRYAGAIN (no server has all of the keys
    before the slot has moved) and CLUSTERDOWN after pauses, until the limit of the caller; then an
    error says why. Without `waits` these are the answer.
    """
    pauses = Pauses(until, waits=waits)
    while refused := sent.refused():
        refusal = next(sent.replies[i] for i in refused if is_refused(sent.replies[i]))
        pause = pauses.next_s(refusal)
        if pause is None:
            if waits:
                error = pauses.explain(sent.key, refusal)
                for index in refused:
                    sent.replies[index] = error
            return
        if pause:
            yield Pause(pause)
        commands: list[Command] = []
        places: list[int | None] = []
        in_transaction = False
        for index in refused:
            if is_ask(refusal) and not in_transaction:
                commands.append(_ASKING)
                places.append(None)
            commands.append(sent.commands[index])
            places.append(index)
            in_transaction = in_transaction or sent.commands[index] == MULTI
        outcome = yield Again(sent.key, refusal, commands)
        answers = outcome.replies if isinstance(outcome, ConnectionLost) else outcome
        # A lost connection stands for each answer that is missing. It is not raised, because the
        # other commands of the request were carried out.
        missing = [outcome] * (len(places) - len(answers))
        for place, answer in zip(places, [*answers, *missing], strict=True):
            if place is not None:
                sent.replies[place] = answer


class Pauses:
    def __init__(self, until: float | None, *, waits: bool) -> None:
        self._began = boot_clock()
        latest = self._began + (MOVING_SECONDS if waits else 0.0)
        self._until = latest if until is None else min(until - MARGIN_S, latest)
        self._redirects = 0
        self._longest_s = SHORTEST_PAUSE_S

    def next_s(self, refusal: Exception, *, is_redirection: bool = True) -> float | None:
        if is_redirection and isinstance(refusal, AskError) and self._redirects < MAX_REDIRECTS:
            self._redirects += 1
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


def refusal_of(replies: Replies) -> Exception | None:
    return next(filter(is_refused, replies), None)


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
