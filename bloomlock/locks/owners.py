"""Which thread holds a lock, and whether it has ended."""

from __future__ import annotations

import threading
import weakref
from typing import Any


class ForeignThread:
    """A thread that the threading module did not start, such as one of C, or a greenlet.

    For that module it is alive for ever, and a later one may have its number. What is kept in its
    own data lives as long as it does.
    """

    def __init__(self) -> None:
        _LOCAL.presence = presence = _Presence()
        self._presence = weakref.ref(presence)

    def has_ended(self) -> bool:
        return self._presence() is None


class _Presence:
    __slots__ = ("__weakref__",)


_LOCAL = threading.local()


def this_thread() -> object:
    """Return who holds what this thread acquires."""
    thread = threading.current_thread()
    if not isinstance(thread, threading._DummyThread):  # noqa: SLF001 - there is no other way to tell
        # Not its number: that is given to another thread when this one has ended.
        return thread
    foreign = getattr(_LOCAL, "owner", None)
    if foreign is None:
        foreign = _LOCAL.owner = ForeignThread()
    return foreign


def thread_has_ended(owner: Any) -> bool:
    if isinstance(owner, ForeignThread):
        return owner.has_ended()
    return isinstance(owner, threading.Thread) and not owner.is_alive()


def thread_is_over(owner: object) -> bool:
    """Return the same at the end of the process, to which the main thread has come."""
    return owner is None or owner is threading.main_thread() or thread_has_ended(owner)
