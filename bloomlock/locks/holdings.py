"""Who of this process holds a lock object."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hold import Hold


class Holdings:
    """The holds of one lock object by owner: a thread, a task, or 0 for all of them.

    Attributes:
        has_ended: Whether an owner has ended.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.has_ended: Callable[[Any], bool] = lambda _: False
        self._holds: dict[object, Hold] = {}

    def own(self, owner: object) -> Hold | None:
        """Return what an owner acquired, lost or not; none that a parent process acquired."""
        hold = self._holds.get(owner)
        return hold if hold is not None and hold.pid == os.getpid() else None

    def of(self, owner: object) -> Hold | None:
        """Return what an owner may give back: its own, or what it is the heir of."""
        hold = self.own(owner)
        if hold is None and owner is not None:
            for other, left in list(self._holds.items()):
                if left.heir is owner and self.has_ended(other) and self.own(other) is left:
                    del self._holds[other]
                    self._holds[owner] = left
                    return left
        return hold

    def put(self, owner: object, hold: Hold) -> Hold | None:
        """Note that an owner holds the lock; return what it held before."""
        before = self._holds.get(owner)
        self._holds[owner] = hold
        return before

    def bequeath(self, owner: object, heir: object) -> None:
        """Let an owner's hold be another's once the owner has ended."""
        if (hold := self.own(owner)) is not None:
            hold.heir = heir

    def drop(self, owner: object) -> None:
        """Note that an owner holds the lock no more."""
        self._holds.pop(owner, None)

    def tokens(self) -> set[bytes]:
        """Return the tokens of all holds."""
        return {hold.token for hold in list(self._holds.values())}

    def __contains__(self, hold: Hold) -> bool:
        """Tell whether a hold was not given back yet."""
        return any(other is hold for other in list(self._holds.values()))

    def forget(self, hold: Hold) -> None:
        """Note that a hold is over, whoever has it."""
        for owner, other in list(self._holds.items()):
            if other is hold:
                self.drop(owner)

    def is_orphan(self, hold: Hold) -> bool:
        """Return whether neither its owner nor its heir is left to give a hold back."""
        heir_is_left = hold.heir is not None and not self.has_ended(hold.heir)
        return not heir_is_left and any(
            other is hold and self.has_ended(owner) for owner, other in list(self._holds.items())
        )
