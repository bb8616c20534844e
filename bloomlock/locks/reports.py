"""What locks and claims report: log lines, and events for observers.

Lines are written in order by a thread of their own: a handler may be slow, or take a lock itself.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bloomlock.runtime.background import SerialQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_END_SECONDS = 1.0
"""How long the end of the process waits for lines that are not written yet."""

EventKind: TypeAlias = Literal["acquired", "timeout", "renewed", "released", "lost"]


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

    kind: EventKind
    name: str
    fence: int | None
    seconds: float
    error: str | None = None


Observer: TypeAlias = Callable[[LockEvent], None]


class Reports:
    """The queue of log lines; `what` is "lock" or "claim", and names the logger."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget lines that are not written yet: a child of fork lacks the thread for it."""
        self._queue = SerialQueue()

    def warning(self, what: str, text: str, *arguments: Any) -> None:
        self._append(partial(logging.getLogger(f"bloomlock.{what}s").warning, text, *arguments))

    def exception(self, what: str, text: str, *arguments: Any) -> None:
        log = logging.getLogger(f"bloomlock.{what}s").error
        self._append(partial(log, text, *arguments, exc_info=sys.exc_info()))

    def lost(self, what: str, labels: Sequence[str], reason: str) -> None:
        self.passive(what, labels, "lost: %s", reason)

    def passive(self, what: str, labels: Sequence[str], text: str, *arguments: Any) -> None:
        """Log one line about all of them."""
        was = "was" if len(labels) == 1 else "were"
        self.warning(what, f"%s %s {text}", listed(labels), was, *arguments)

    def flush(self) -> None:
        done = threading.Event()
        self._append(done.set)
        done.wait(AT_END_SECONDS)

    def _append(self, job: Callable[[], object]) -> None:
        def write() -> None:
            with contextlib.suppress(BaseException):
                job()

        self._queue.append(write)


def listed(labels: Sequence[str]) -> str:
    """Return a text that names the first and counts the rest."""
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


REPORTS = Reports()
os.register_at_fork(after_in_child=REPORTS.start_over)
atexit.register(REPORTS.flush)
