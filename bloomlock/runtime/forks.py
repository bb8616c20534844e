"""Locks of threads that a child process finds free.

A fork copies a lock as it is, and not the thread that holds it. What the lock protects is copied as
it is too, so an owner must leave it usable after each single step.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class LockOwner:
    """An object with a lock of its own, which is another one, and free, in each child of fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        LOCKS[self] = threading.Lock


LOCKS: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()
"""By their owner what makes the locks, which are attributes `_lock`."""


def _renew_locks() -> None:
    for owner, make in list(LOCKS.items()):
        owner._lock = make()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_renew_locks)
