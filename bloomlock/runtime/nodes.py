"""The servers behind a client: which one has a key, and what is sent again when that changes.

These are the bases of both runtimes; cluster.py has the rules they follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self, TypeVar

import redis
import redis.asyncio
from redis.exceptions import MovedError, RedisClusterException, RedisError

from bloomlock.effects import ConnectionLost

from . import redispy
from .clock import boot_clock
from .cluster import Rounds, Sent, find_again, find_redirects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.commands import Command, Replies
    from bloomlock.effects import Pipeline, Request

    from .cluster import Again, Redirect
    from .connections import AsyncTaken, Taken

T = TypeVar("T")
CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)


class ClientServers:
    """The server of a client, or the nodes of its cluster.

    Args:
        client: The client.
        members: The runtime of each server that a FanOut goes to; empty: itself.
    """

    def __init__(self, client: Any, members: Sequence[Self]) -> None:
        self.client = client
        self._cluster: Any = client if isinstance(client, CLUSTERS) else None
        self._members = members

    @property
    def members(self) -> Sequence[Self]:
        """The runtime of each server that a FanOut goes to."""
        return self._members or (self,)

    @property
    def is_cluster(self) -> bool:
        """Whether keys lie on several servers."""
        return self._cluster is not None

    def server_of(self, key: str) -> str:
        """Return which server of a cluster has a key; empty if there is only one, or none."""
        return redispy.server_of_key(self.client, key)

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:
        """Return the items in groups, each of which one request may carry."""
        if len(self.members) > 1:
            return [[item] for item in items]
        if self._cluster is None:
            return [items]
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(redispy.slot_of(key_of(item)), []).append(item)
        return list(groups.values())


class Redirecting(ClientServers, ABC):
    """Sends again what a cluster redirects, for threads."""

    @abstractmethod
    def _source(self, key: str) -> Any:
        """Return the pool of the server that has a key."""

    @abstractmethod
    def _source_of(self, key: str) -> Any:
        """Return the same; ConnectionLost where no server has the key."""

    @abstractmethod
    def _take(self, source: Any, /) -> Taken:
        """Take a connection from a pool."""

    @abstractmethod
    def _exchange(self, taken: Taken, commands: Sequence[Command]) -> Replies:
        """Send commands and return their replies."""

    @abstractmethod
    def _end(self, taken: Taken, commands: Sequence[Command], replies: Replies) -> None:
        """Give a connection back, or close it if MULTI or WATCH may be pending on it."""

    @abstractmethod
    def _drop(self, taken: Taken) -> None:
        """Give back a connection that is in the middle of something."""

    def _by_source(
        self, requests: Sequence[Request | Pipeline], outcomes: list[Any]
    ) -> list[tuple[Any, Sequence[int]]]:
        """Return the indices of the requests for each server; note those that have none."""
        if self._cluster is None:
            return [(self._source(""), range(len(requests)))]
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index, request in enumerate(requests):
            try:
                source = self._source_of(request.key)
            except ConnectionLost as lost:
                outcomes[index] = lost
            else:
                groups.setdefault(id(source), (source, []))[1].append(index)
        # In one order for all threads, which may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

    def _follow(self, requests: Sequence[Sent], until: float | None, *, waits: bool) -> None:
        """Send again what a cluster refused because a slot moves, until all is answered."""
        rounds: Rounds | None = None
        while again := find_again(requests):
            now = boot_clock()
            rounds = rounds or Rounds(now, until, waits=waits)
            pause = rounds.pause(now, redirected=all(part.target for part in again))
            if pause is None:
                for sent in requests:
                    rounds.explain(sent, now)
                return
            if pause:
                time.sleep(pause)
            for part in again:
                self._send_again(part)

    def _send_again(self, again: Again) -> None:
        commands = again.commands
        try:
            self._note_moved([redirect for _, redirect in again.parts])
            taken = self._take(self._redirected_source(again))
            answers = self._exchange(taken, commands)
        except ConnectionLost as lost:
            again.merge(lost.replies, lost)
        except (RedisError, OSError) as error:
            # What else serves it could not be found out; the others were answered.
            again.merge([], ConnectionLost(error, sent=False, replies=[]))
        else:
            self._end(taken, commands, answers)
            again.merge(answers)

    def _begin_to_hold(self, request: Request, until: float | None) -> tuple[Replies, Taken | None]:
        """Send a first request under WATCH to the server that has the slot, when one has it."""
        rounds: Rounds | None = None
        while True:
            taken = self._take(self._source_of(request.key))
            replies = self._exchange(taken, request.commands)
            refused = find_redirects(request.commands, replies)
            if not refused:
                return replies, taken
            self._drop(taken)
            now = boot_clock()
            rounds = rounds or Rounds(now, until)
            pause = rounds.pause(now, redirected=self._note_moved(refused))
            if pause is None:
                rounds.explain(Sent(request.key, request.commands, replies), now)
                return replies, None
            if pause:
                time.sleep(pause)

    def _note_moved(self, redirects: Sequence[Redirect]) -> bool:
        """Note what has moved; return whether all has, so that no pause is needed."""
        moved = [each.error for each in redirects if isinstance(each.error, MovedError)]
        for error in moved:
            if error.host:
                redispy.note_moved(self._cluster, error)
            else:
                self._look_for_nodes()
        return len(moved) == len(redirects)

    def _redirected_source(self, again: Again) -> Any:
        if again.target is not None:
            _, host, port = again.target
            source = redispy.pool_of_address(self._cluster, host, port)
            if source is not None:
                return source
            self._look_for_nodes()
        return self._source_of(again.key)

    def _look_for_nodes(self) -> None:
        """Ask a cluster anew who serves what, after one of its servers was not reachable."""
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                redispy.find_servers(self._cluster)


class AsyncRedirecting(ClientServers, ABC):
    """Sends again what a cluster redirects, for asyncio."""

    @abstractmethod
    async def _source(self, key: str) -> Any:
        """Return what connections come from: the pool, or the node of a cluster that has a key."""

    @abstractmethod
    async def _source_of(self, key: str) -> Any:
        """Return the same; ConnectionLost where no server has the key."""

    @abstractmethod
    async def _take(self, source: Any, /) -> AsyncTaken:
        """Take a connection from a pool or a node."""

    @abstractmethod
    async def _exchange_once(self, taken: AsyncTaken, commands: Sequence[Command]) -> Replies:
        """Send commands in one write and return their replies."""

    async def _by_source(
        self, requests: Sequence[Request | Pipeline], outcomes: list[Any]
    ) -> list[tuple[Any, Sequence[int]]]:
        """Return the indices of the requests for each server; note those that have none."""
        if self._cluster is None:
            return [(await self._source(""), range(len(requests)))]
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index, request in enumerate(requests):
            try:
                source = await self._source_of(request.key)
            except ConnectionLost as lost:
                outcomes[index] = lost
            else:
                groups.setdefault(id(source), (source, []))[1].append(index)
        # In one order for all tasks, which may have to wait for connections.
        return [groups[number] for number in sorted(groups)]

    async def _follow(self, requests: Sequence[Sent], until: float | None, *, waits: bool) -> None:
        """Send again what a cluster refused because a slot moves, until all is answered."""
        rounds: Rounds | None = None
        while again := find_again(requests):
            now = boot_clock()
            rounds = rounds or Rounds(now, until, waits=waits)
            pause = rounds.pause(now, redirected=all(part.target for part in again))
            if pause is None:
                for sent in requests:
                    rounds.explain(sent, now)
                return
            if pause:
                await asyncio.sleep(pause)
            for part in again:
                await self._send_again(part)

    async def _send_again(self, again: Again) -> None:
        commands = again.commands
        try:
            await self._note_moved([redirect for _, redirect in again.parts])
            taken = await self._take(await self._redirected_source(again))
            answers = await self._exchange_once(taken, commands)
        except ConnectionLost as lost:
            again.merge(lost.replies, lost)
        except (RedisError, OSError) as error:
            # What else serves it could not be found out; the others were answered.
            again.merge([], ConnectionLost(error, sent=False, replies=[]))
        else:
            await taken.end(commands, answers)
            again.merge(answers)

    async def _begin_to_hold(
        self, request: Request, until: float | None
    ) -> tuple[Replies, AsyncTaken | None]:
        """Send a first request under WATCH to the server that has the slot, when one has it."""
        rounds: Rounds | None = None
        while True:
            taken = await self._take(await self._source_of(request.key))
            replies = await self._exchange_once(taken, request.commands)
            refused = find_redirects(request.commands, replies)
            if not refused:
                return replies, taken
            await taken.drop()
            now = boot_clock()
            rounds = rounds or Rounds(now, until)
            redirected = await self._note_moved(refused)
            pause = rounds.pause(now, redirected=redirected)
            if pause is None:
                rounds.explain(Sent(request.key, request.commands, replies), now)
                return replies, None
            if pause:
                await asyncio.sleep(pause)

    async def _note_moved(self, redirects: Sequence[Redirect]) -> bool:
        """Note what has moved; return whether all has, so that no pause is needed."""
        moved = [each.error for each in redirects if isinstance(each.error, MovedError)]
        for error in moved:
            if error.host:
                await redispy.async_note_moved(self._cluster, error)
            else:
                await self._look_for_nodes()
        return len(moved) == len(redirects)

    async def _redirected_source(self, again: Again) -> Any:
        if again.target is not None:
            _, host, port = again.target
            source = redispy.source_of_address(self._cluster, host, port)
            if source is not None:
                return source
            await self._look_for_nodes()
        return await self._source_of(again.key)

    async def _look_for_nodes(self) -> None:
        """Ask a cluster anew who serves what, after one of its servers was not reachable."""
        if self._cluster is not None:
            with contextlib.suppress(RedisError, RedisClusterException, OSError):
                await redispy.async_find_servers(self._cluster)
