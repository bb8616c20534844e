"""Locks of threads that a child process finds free.

A fork copies a lock as it is, and not the thread that holds it. What the lock protects is copied as
it is too, so an owner must leave it usable after each single step.
"""

from __future__ import annotations

import os
import threading
import weakref


class LockOwner:
    """An object with a lock of its own, which is another one, and free, in each child of fork."""

    def __init__(self) -> None:
        self._renew_lock()
        _OWNERS.add(self)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


_OWNERS: weakref.WeakSet[LockOwner] = weakref.WeakSet()


def _renew_locks() -> None:
    for owner in list(_OWNERS):
        owner._renew_lock()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_renew_locks)
