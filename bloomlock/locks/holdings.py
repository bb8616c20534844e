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
        inherits: Whether the hold of an owner that has ended may be given back by others. If not
            it is nobody's, and is left to expire.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.has_ended: Callable[[Any], bool] = lambda _: False
        self.inherits = False
        self._holds: dict[object, Hold] = {}

    def own(self, owner: object) -> Hold | None:
        """Return what an owner acquired, lost or not; none that a parent process acquired."""
        hold = self._holds.get(owner)
        return hold if hold is not None and hold.pid == os.getpid() else None

    def of(self, owner: object) -> Hold | None:
        """Return what an owner may give back.

        A task that only acquired and has ended (as asyncio.wait_for starts one) leaves its hold
        to whoever asks for it.
        """
        hold = self.own(owner)
        if hold is None and self.inherits and self._holds:
            left = [other for other in list(self._holds) if self.has_ended(other)]
            if len(left) == 1 and (hold := self.own(left[0])) is not None:
                del self._holds[left[0]]
                self._holds[owner] = hold
        return hold

    def put(self, owner: object, hold: Hold) -> Hold | None:
        """Note that an owner holds the lock; return what it held before."""
        before = self._holds.get(owner)
        self._holds[owner] = hold
        return before

    def drop(self, owner: object) -> None:
        """Note that an owner holds the lock no more."""
        self._holds.pop(owner, None)

    def tokens(self) -> set[bytes]:
        """Return the tokens of all holds."""
        return {hold.token for hold in list(self._holds.values())}

    def __contains__(self, hold: Hold) -> bool:
        """Tell whether a hold was not given back yet."""
        return any(other is hold for other in list(self._holds.values()))

    def is_orphan(self, hold: Hold) -> bool:
        """Tell whether nobody is left who could give a hold back."""
        if self.inherits:
            return False
        holds = list(self._holds.items())
        return any(other is hold and self.has_ended(owner) for owner, other in holds)
