"""Bits set one by one under a lock for the item: for servers where one command cannot reach.

Locks are striped by item, 1024 for each shard, so two workers wait for each other only over the
same item (or, one time in a thousand, another of its stripe). No worker ever waits while it
holds a lock, so there is no deadlock, whatever order a batch comes in.

The lock's key is read after the bits, in the same trip. If the lease ran out meanwhile, somebody
else may have set the same bits; the answer then is "not known", never a second "new".
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from bloomlock.commands import ConnectionLost, Core, Pause, Request, collect
from bloomlock.errors import LockTimeoutError
from bloomlock.keys import lock_key
from bloomlock.locks.stripes import StripeLocks

from .base import Segment, Strategy
from .bits import bit_commands, header_command
from .pipeline import bits_then_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .base import Rows, Shard

STRIPES = 1024
SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.05


class LockStrategy(Strategy):
    """Two round trips for the update and one to release; exact while leases hold, else "unknown".

    Args:
        timeout: Seconds to wait for the lock of an item.
        stripes: Locks for each shard.
        new_token: Gives a token that nobody else has.
    """

    name = "lock"
    whole = False

    def __init__(
        self,
        timeout: float = 30.0,
        stripes: int = STRIPES,
        new_token: Callable[[], bytes] = lambda: secrets.token_bytes(16),
    ) -> None:
        """Keep the waiting time."""
        self._new_token = new_token
        self._timeout = timeout
        self._stripes = stripes
        self._locks = StripeLocks()

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange; a test needs no lock."""
        key = shard.key
        if not write:
            commands = [*bit_commands(key, rows, write=False), header_command(key)]
            replies = yield from collect(Request(key, commands), repeatable=True)
            return [bits_then_header(replies, rows)]
        results: list[Segment | None] = [None] * len(rows)
        waited, pause = 0.0, SHORTEST_PAUSE
        while waiting := [index for index, done in enumerate(results) if done is None]:
            if waited > self._timeout:
                error = LockTimeoutError(f"no lock for an item within {self._timeout:g} s")
                return [done or Segment(1, error=error) for done in results]
            progressed = yield from self._round(key, rows, waiting, results)
            if not progressed:
                yield Pause(pause)
                waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE)
        return [done for done in results if done is not None]

    def _round(
        self, key: str, rows: Rows, waiting: list[int], results: list[Segment | None]
    ) -> Core[bool]:
        """Update every waiting row whose lock is free; tell whether there was one."""
        token = self._new_token()
        names = {index: self._lock_name(key, rows[index]) for index in waiting}
        wanted = sorted(set(names.values()))
        try:
            held = yield from self._locks.acquire(wanted, token)
        except RedisError as error:
            for index in waiting:
                results[index] = Segment(1, error=error)
            return True
        mine = {name for name, ours in zip(wanted, held, strict=True) if ours}
        ready = [index for index in waiting if names[index] in mine]
        if ready:
            segments = yield from self._update(key, [(rows[i], names[i]) for i in ready], token)
            for index, segment in zip(ready, segments, strict=True):
                results[index] = segment
            yield from self._locks.release(sorted(mine), token)
        return bool(ready)

    def _update(
        self, key: str, locked: list[tuple[Iterable[int], str]], token: bytes
    ) -> Core[list[Segment]]:
        """Set the bits of rows whose locks are held, and look whether they still are."""
        commands: list[bytes] = []
        ends = []
        for row, name in locked:
            commands += bit_commands(key, [list(row)], write=True)
            commands += [header_command(key), self._locks.held_command(name)]
            ends.append(len(commands))
        replies = yield from collect(Request(key, commands), repeatable=False)
        segments, start = [], 0
        for (row, _), end in zip(locked, ends, strict=True):
            *bits, holder = replies[start:end]
            segment = bits_then_header(bits, [list(row)])
            if segment.error is None and holder != token:
                segment = Segment(1, error=_lease_lost(holder))
            segments.append(segment)
            start = end
        return segments

    def _lock_name(self, key: str, row: Iterable[int]) -> str:
        # The offsets are the item's identity here: the same item has the same stripe everywhere.
        return lock_key(key, sum(row) % self._stripes)


def _lease_lost(holder: object) -> Exception:
    if isinstance(holder, Exception):
        return holder
    cause = RedisError("the lease of the item's lock ran out before its bits were set")
    return ConnectionLost(cause, sent=True, replies=[])
