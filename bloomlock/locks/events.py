"""What locks tell an observer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

logger = logging.getLogger("bloomlock.locks")


@dataclass(frozen=True, slots=True)
class LockEvent:
    """Something happened to a lock.

    Attributes:
        kind: "acquired", "timeout" (not obtained in time), "renewed", "released" or "lost".
        name: The lock's name.
        fence: Of the hold, None if there is none.
        seconds: For "acquired" and "timeout" how long it waited, else how long it was held.
        error: For "lost" what happened.
    """

    kind: Literal["acquired", "timeout", "renewed", "released", "lost"]
    name: str
    fence: int | None
    seconds: float
    error: str | None = None


Observer: TypeAlias = Callable[[LockEvent], None]


def tell(observer: Observer | None, event: LockEvent) -> None:
    """Call the observer; what it raises is logged and harms no lock."""
    if observer is None:
        return
    try:
        observer(event)
    except Exception:
        logger.exception("the observer of lock %r raised", event.name)
