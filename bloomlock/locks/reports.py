"""What locks and claims report: log lines, and events for observers.

No line is written and no observer called by a thread that renews locks, nor under a mutex: either
may be slow, or take a lock itself. Lines are written in order by a thread of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bloomlock.runtime.background import Line
from bloomlock.runtime.clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .hold import Hold

AT_END_SECONDS = 1.0
"""How long the end of the process waits for lines that are not written yet."""
OVER_SECONDS = 30.0
"""A server that no renewal failed at for so long has had no outage since; tries are closer."""
KEPT_EVENTS = 1000
"""How many events of one lock object wait for an observer that blocks."""


@dataclass
class Outage:
    since: float
    last: float
    failed: int = 0


class Reports:
    """What is to be logged; `what` is "lock" or "claim", and names the logger."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget what is not written: a child of fork has not the thread for it."""
        self._line = Line()
        self._outages: dict[str, Outage] = {}

    def warning(self, what: str, text: str, *arguments: Any) -> None:
        self._append(partial(logging.getLogger(f"bloomlock.{what}s").warning, text, *arguments))

    def exception(self, what: str, text: str, *arguments: Any) -> None:
        log = logging.getLogger(f"bloomlock.{what}s").error
        self._append(partial(log, text, *arguments, exc_info=sys.exc_info()))

    def not_renewed(
        self, what: str, labels: Sequence[str], server: str, error: Exception | None
    ) -> None:
        """Log one line for each server and outage."""
        now = boot_clock()
        new = Outage(now, now)
        outage = self._outages.setdefault(server, new)
        if now - outage.last > OVER_SECONDS:
            outage = self._outages[server] = new
        if outage is new:
            text = "%s could not be renewed yet: %s (%s; one line for all until it answers)"
            self.warning(what, text, listed(labels), error, server)
        outage.last = now
        outage.failed += len(labels)

    def renewed(self, what: str, server: str) -> None:
        """Note that a server has answered a renewal; a line if that ends an outage."""
        if (outage := self._outages.pop(server, None)) is not None:
            text = "%s renews again; %d renewals failed within %.1f s"
            self.warning(what, text, server, outage.failed, boot_clock() - outage.since)

    def lost(self, what: str, labels: Sequence[str], reason: str) -> None:
        text = "%s were lost: %s" if len(labels) > 1 else "%s was lost: %s"
        self.warning(what, text, listed(labels), reason)

    def flush(self) -> None:
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._append(partial(done.put, None))
        with contextlib.suppress(queue.Empty):
            done.get(timeout=AT_END_SECONDS)

    def _append(self, job: Callable[[], object]) -> None:
        def write() -> None:
            with contextlib.suppress(BaseException):
                job()

        self._line.append(write)


def listed(labels: Sequence[str]) -> str:
    """Return a text that names the first and counts the rest.

    >>> listed(["lock 'a'", "lock 'b'", "lock 'c'"])
    "lock 'a' and 2 more"
    """
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


REPORTS = Reports()
os.register_at_fork(after_in_child=REPORTS.start_over)
atexit.register(REPORTS.flush)


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
Call: TypeAlias = Callable[[Callable[[], Any]], None]
"""Has a function called in a thread of its own, or by the loop."""


class _Turn:
    is_over = False


class Events:
    """Reports to an observer what happens to one lock object, in order and one at a time.

    A renewal is reported between the acquisition and the end of its hold, or not at all.
    """

    def __init__(self, name: str, observer: Observer | None) -> None:
        self._name = name
        self._observer = observer
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        # The oldest go first where an observer blocks for ever.
        self._pending: deque[tuple[LockEvent, Hold | None]] = deque(maxlen=KEPT_EVENTS)
        # The first turn that is not over reports what is pending. Lists are C through and through:
        # a KeyboardInterrupt leaves them whole.
        self._turns: list[_Turn] = []

    def report(
        self,
        kind: EventKind,
        seconds: float,
        hold: Hold | None = None,
        error: str | None = None,
        call: Call | None = None,
    ) -> None:
        """Report an event after those whose report is under way in another thread.

        With `call` it is reported by what that calls; this never raises then.
        """
        if self._observer is None:
            return
        if self._pid != os.getpid():
            # The thread that reported stayed in the parent process.
            self._start_over()
        fence = None if hold is None else hold.fence
        self._pending.append((LockEvent(kind, self._name, fence, seconds, error), hold))
        if call is None:
            self._report_pending(Exception)
        elif self._first_turn() is None:
            call(partial(self._report_pending, BaseException))

    def _first_turn(self) -> _Turn | None:
        return next((turn for turn in tuple(self._turns) if not turn.is_over), None)

    def _report_pending(self, logged: type[BaseException]) -> None:
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
