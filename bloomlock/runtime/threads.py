"""The runtime for threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import connections
from ._sync.driver import SHARED, Driver
from .background import Background
from .pubsub import Listeners

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import redis

    from bloomlock.commands import Replies
    from bloomlock.effects import Subscribe

    from .connections import Taken
    from .pubsub import Listener


class Threads(Driver):
    """Runs cores; safe to use from many threads."""

    def __init__(
        self, client: redis.Redis | redis.RedisCluster, members: Sequence[Threads] = ()
    ) -> None:
        super().__init__(client, members)
        self._background = Background()
        self._listeners = Listeners()

    def close(self) -> None:
        self._kept.give_back()
        self._listeners.close()

    def subscribe(self, step: Subscribe) -> Listener | None:
        return self._listeners.take(self.source_of(step.key), step)

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners.give_back(listener)

    def _take_turns(self, turns: Sequence[Generator[bool]]) -> None:
        try:
            # Every server has its next write before any reply is waited for longer than that.
            writing = list(turns)
            while writing:
                writing = [turn for turn in writing if next(turn, False)]
            for turn in turns:
                next(turn, None)
        finally:
            for turn in turns:
                turn.close()

    def _abandon(self, taken: Taken, _error: BaseException, _count: int, _replies: Replies) -> None:
        self._drop(taken)


threads_for, threads_over = Threads.of, Threads.over


def _renew_pool_locks() -> None:
    for runtime in list(SHARED.values()):
        connections.renew_lock(connections.own_pool(runtime.client))


os.register_at_fork(after_in_child=_renew_pool_locks)
