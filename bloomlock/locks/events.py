"""What locks report to an observer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from .reports import REPORTS

if TYPE_CHECKING:
    from .hold import Hold

KEPT_EVENTS = 1000
"""How many events of one lock object wait for an observer that blocks."""


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


class _Turn:
    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class Events:
    """Reports to an observer what happens to one lock object, in order and one at a time.

    What its holder does is reported in the holder's own thread, whatever it raises included.
    What happens behind the holder's back is reported where the watchdog has such functions called,
    so that an observer that blocks or raises stops no renewal. A renewal is reported between the
    acquisition and the end of its hold, or not at all.
    """

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        # The oldest go first where an observer blocks for ever.
        self._pending: deque[tuple[LockEvent, Hold | None]] = deque(maxlen=KEPT_EVENTS)
        # The first turn that is not over reports what is pending. Lists are C through and through:
        # a KeyboardInterrupt leaves them whole.
        self._turns: list[_Turn] = []

    def report(self, event: LockEvent, hold: Hold | None = None) -> None:
        """Report an event now, or after those whose report is under way in another thread."""
        if self._observer is not None:
            self._append(event, hold)
            self._report_pending()

    def report_behind(
        self, event: LockEvent, hold: Hold, call: Callable[[Callable[[], None]], None]
    ) -> None:
        """Report an event apart from the thread that notices it; never raises."""
        if self._observer is not None:
            self._append(event, hold)
            if self._first_turn() is None:
                call(self._report_behind)

    def _append(self, event: LockEvent, hold: Hold | None) -> None:
        if self._pid != os.getpid():
            # The thread that reported stayed in the parent process.
            self._start_over()
        self._pending.append((event, hold))

    def _report_behind(self) -> None:
        self._report_pending(BaseException)

    def _first_turn(self) -> _Turn | None:
        return next((turn for turn in tuple(self._turns) if not turn.is_over), None)

    def _report_pending(self, logged: type[BaseException] = Exception) -> None:
        # Looks again after giving up its turn: an event may have come just before that.
        while self._pending:
            turn = _Turn()
            try:
                self._turns.append(turn)
                if self._first_turn() is not turn:
                    return
                while self._pending:
                    self._call(*self._pending.popleft(), logged)
            finally:
                # An assignment, which no KeyboardInterrupt comes before, ends it whatever follows.
                turn.is_over = True
                if turn in self._turns:
                    self._turns.remove(turn)

    def _call(self, event: LockEvent, hold: Hold | None, logged: type[BaseException]) -> None:
        if hold is not None:
            # The reply to a renewal may come while the hold is given back.
            if event.kind == "renewed" and hold.reported not in ("acquired", "renewed"):
                return
            hold.reported = event.kind
        try:
            self._observer(event)  # type: ignore[misc]  # nothing is pending without one
        except logged:
            REPORTS.exception("lock", "the observer of lock %r raised", event.name)
