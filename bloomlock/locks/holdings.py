"""Who of this process holds a lock object."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hold import Hold

_guard = threading.RLock()


class Holdings:
    """The holds of one lock object by owner: the thread or task that acquired them.

    No hold replaces another: an owner has all that were granted to it and not given back. Reading
    takes no lock, because the tuples are replaced as a whole.

    Args:
        shared: Whether an owner that has no hold of its own may use those of others.

    Attributes:
        has_ended: Whether an owner has ended.
    """

    def __init__(self, *, shared: bool = False) -> None:
        """Start with none."""
        self.has_ended: Callable[[Any], bool] = lambda _: False
        self._shared = shared
        self._holds: dict[object, tuple[Hold, ...]] = {}
        self._owners: dict[Hold, object] = {}

    def own(self, owner: object) -> Hold | None:
        """Return what an owner acquired last, lost or not; none that a parent process acquired."""
        held = [hold for hold in self._holds.get(owner, ()) if hold.pid == os.getpid()]
        return held[-1] if held else None

    def mine(self, owner: object) -> Hold | None:
        """Return an owner's hold: what it acquired, or what it is the heir of."""
        hold = self.own(owner)
        if hold is None and owner is not None:
            for left in self._all():
                if left.heir is owner and self._has_lost_its_owner(left):
                    self.drop(left)
                    self.put(owner, left)
                    return left
        return hold

    def of(self, owner: object) -> Hold | None:
        """Return what an owner may give back: its own; else, if they are shared, the oldest."""
        hold = self.mine(owner)
        if hold is None and self._shared:
            held = self._all()
            live = [other for other in held if not other.lost]
            return min(live or held, key=lambda other: other.since, default=None)
        return hold

    def put(self, owner: object, hold: Hold) -> None:
        """Note that an owner holds the lock; what it has already stays."""
        with _guard:
            self._holds[owner] = (*self._holds.get(owner, ()), hold)
            self._owners[hold] = owner

    def rivals(self, hold: Hold) -> list[Hold]:
        """Return all other holds that are not known to be lost."""
        return [other for other in self._all() if other is not hold and not other.lost]

    def forget_lost(self, owner: object) -> None:
        """Forget the lost holds of an owner that has a newer one."""
        for hold in self._holds.get(owner, ())[:-1]:
            if hold.lost:
                self.drop(hold)

    def count_again(self, hold: Hold) -> bool:
        """Count a hold once more; False if it was given back meanwhile."""
        with _guard:
            if hold not in self:
                return False
            hold.count += 1
            return True

    def give_back(self, hold: Hold, stop: Callable[[Hold], None]) -> int | None:
        """Count a hold once less, and forget it with the last.

        Args:
            hold: One of these.
            stop: Called with the hold before it is forgotten.

        Returns:
            How often it is still held; None: another thread has given it back.
        """
        with _guard:
            if hold not in self:
                return None
            if hold.count > 1:
                hold.count -= 1
                return hold.count
            stop(hold)
            self.drop(hold)
            return 0

    def drop(self, hold: Hold) -> None:
        """Forget a hold, however often it is counted."""
        with _guard:
            if hold not in self:
                return
            owner = self._owners.pop(hold)
            rest = tuple(other for other in self._holds[owner] if other is not hold)
            if rest:
                self._holds[owner] = rest
            else:
                del self._holds[owner]

    def tokens(self) -> set[bytes]:
        """Return the tokens of all holds."""
        return {hold.token for hold in list(self._owners)}

    def __contains__(self, hold: Hold) -> bool:
        """Tell whether a hold was not given back yet."""
        return hold in self._owners

    def owner_of(self, hold: Hold) -> object:
        """Return who acquired a hold, None if it was given back."""
        return self._owners.get(hold)

    def bequeath(self, owner: object, heir: object) -> None:
        """Let an owner's hold be another's once the owner has ended."""
        if (hold := self.own(owner)) is not None:
            hold.heir = heir

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether neither its owner nor its heir is left to give a hold back."""
        heir_is_left = hold.heir is not None and not self.has_ended(hold.heir)
        return not (self._shared or heir_is_left) and self._has_lost_its_owner(hold)

    def _has_lost_its_owner(self, hold: Hold) -> bool:
        owner = self._owners.get(hold)
        return owner is not None and self.has_ended(owner)

    def _all(self) -> list[Hold]:
        pid = os.getpid()
        return [hold for hold in list(self._owners) if hold.pid == pid]


def _start_over() -> None:
    global _guard  # noqa: PLW0603 - another thread may have had it when this process was forked
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_start_over)
