"""Locks of threads that a child process finds free.

A fork copies a lock as it is, and not the thread that holds it. What the lock protects is copied as
it is too, so an owner must leave it usable after each single step.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class LockOwner:
    """An object with a lock of its own, which is another one, and free, in each child of fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        OWNERS[id(self)] = self


OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""What has a lock, its attribute `_lock`, by `id`: a pool of the user's own may be unhashable."""


def _renew_locks() -> None:
    for owner in list(OWNERS.values()):
        make = threading.Lock if isinstance(owner, LockOwner) else threading.RLock
        owner._lock = make()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_renew_locks)
