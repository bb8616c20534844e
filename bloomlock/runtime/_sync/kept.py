# Written by tools/async_to_sync.py from bloomlock/runtime/_async/kept.py; change that.
"""The connection that is kept out of its pool between requests."""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any

from bloomlock.runtime import connections, redispy
from bloomlock.runtime.connections import KEPT_SECONDS

if TYPE_CHECKING:
    from bloomlock.runtime.connections import Idle, Source, Taken


class Kept:
    """One idle connection of a pool; taking one from the pool costs up to a third of an add.

    It goes back by the pool's own release after some seconds of use, in a child of fork or on
    another event loop, and before it is used when redis-py has marked it: for another server after
    a maintenance hand-off, or for a new credential. Pools that hold few connections, or make
    callers wait for one, are left alone, and so are Sentinel's, which look at each connection that
    comes back whether its server is still the master.

    Args:
        pool: The pool; None, or one that may not be without a connection, keeps none here.
    """

    def __init__(self, pool: Source | None) -> None:
        self._pool: Any = pool if connections.may_keep_one(pool) else None
        self._idle: list[Idle] = []
        self._release_at = time.monotonic() + KEPT_SECONDS
        # The pool counts the connection as used; it must not do so for ever.
        release = connections.release_at_end
        weakref.finalize(self, release, self._pool, self._idle).atexit = False

    def keep(self, taken: Taken) -> bool:
        connection = taken.connection
        if taken.source is not self._pool or self._idle:
            return False
        now = time.monotonic()
        # One that was closed would be opened in the middle of a request.
        if now >= self._release_at or not connections.is_open(connection):
            self._release_at = now + KEPT_SECONDS
            return False
        self._idle.append((connection, connections.owner(), now))
        return True

    def take(self, source: Source) -> Any:
        try:
            connection, owner, used = self._idle.pop()
        except IndexError:
            return None
        if source is self._pool and owner == connections.owner():
            if connections.is_usable(connection, used):
                return connection
            if not connections.is_marked(connection):
                redispy.close_quietly(connection)
        self._release(connection, owner)
        return None

    def give_back(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                connection, owner, _ = self._idle.pop()
                self._release(connection, owner)

    def _release(self, connection: Any, owner: object) -> None:
        connections.release(self._pool, connection)
