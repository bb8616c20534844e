"""Log lines about locks and claims, written in order by a thread of their own.

A log handler may be slow, or take a lock itself. So no line is written by a thread or a loop that
renews locks, nor under a mutex, nor by a holder between two of its steps.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bloomlock.runtime.background import Line
from bloomlock.runtime.clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_END_SECONDS = 1.0
"""How long the end of the process waits for lines that are not written yet."""
OVER_SECONDS = 30.0
"""A server that no renewal failed at for so long has had no outage since; tries are closer."""


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
        self._append(partial(_logger(what).warning, text, *arguments))

    def exception(self, what: str, text: str, *arguments: Any) -> None:
        error = sys.exc_info()
        self._append(partial(_logger(what).error, text, *arguments, exc_info=error))

    def not_renewed(
        self, what: str, labels: Sequence[str], server: str, error: Exception | None
    ) -> None:
        """Note that renewals failed; one line for each server and outage."""
        self._append(partial(self._note_failure, what, labels, server, error, boot_clock()))

    def renewed(self, what: str, server: str) -> None:
        """Note that a server has answered a renewal; a line if that ends an outage."""
        if server in self._outages:
            self._append(partial(self._note_answer, what, server, boot_clock()))

    def lost(self, what: str, labels: Sequence[str], reason: str) -> None:
        several = len(labels) > 1
        text = "%s were lost: %s" if several else "%s was lost: %s"
        self.warning(what, text, listed(labels), reason)

    def flush(self) -> None:
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._append(partial(done.put, None))
        with contextlib.suppress(queue.Empty):
            done.get(timeout=AT_END_SECONDS)

    def _note_failure(
        self, what: str, labels: Sequence[str], server: str, error: Exception | None, now: float
    ) -> None:
        outage = self._outages.get(server)
        if outage is None or now - outage.last > OVER_SECONDS:
            outage = self._outages[server] = Outage(now, now)
            text = "%s could not be renewed yet: %s (%s; one line for all until it answers)"
            _logger(what).warning(text, listed(labels), error, server)
        outage.last = now
        outage.failed += len(labels)

    def _note_answer(self, what: str, server: str, now: float) -> None:
        if (outage := self._outages.pop(server, None)) is not None:
            text = "%s renews again; %d renewals failed within %.1f s"
            _logger(what).warning(text, server, outage.failed, now - outage.since)

    def _append(self, job: Callable[[], object]) -> None:
        self._line.append(partial(_safely, job))


def listed(labels: Sequence[str]) -> str:
    """Return a text that names the first and counts the rest.

    >>> listed(["lock 'a'", "lock 'b'", "lock 'c'"])
    "lock 'a' and 2 more"
    """
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


def _logger(what: str) -> logging.Logger:
    return logging.getLogger(f"bloomlock.{what}s")


def _safely(job: Callable[[], object]) -> None:
    with contextlib.suppress(BaseException):
        job()


REPORTS = Reports()
os.register_at_fork(after_in_child=REPORTS.start_over)
atexit.register(REPORTS.flush)
