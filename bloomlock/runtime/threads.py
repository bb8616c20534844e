"""The runtime for threads."""

import os

from . import connections
from ._sync.driver import SHARED
from ._sync.driver import Driver as Threads

__all__ = ["Threads", "threads_for", "threads_over"]

threads_for, threads_over = Threads.of, Threads.over


def _renew_pool_locks() -> None:
    for runtime in list(SHARED.values()):
        connections.renew_lock(connections.own_pool(runtime.client))


os.register_at_fork(after_in_child=_renew_pool_locks)
