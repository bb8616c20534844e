"""One thread for all locks of the process: renews what is held, tells what is lost.

It never talks to a server itself: renewals run in a short-lived thread for each client that has
some due, so a server that does not answer holds up neither the locks of others nor the news that
a lock is lost. A child of fork starts with nothing to watch.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from bloomlock.runtime.clock import boot_clock

from .core import OUT_OF_LEASE, abilities_of
from .schedule import LONGEST_SLEEP, Schedule, Watch, give_up, key_of, renew

if TYPE_CHECKING:
    from .hold import Hold

logger = logging.getLogger("bloomlock.locks")

IDLE_SECONDS = 5.0


class Watchdog:
    """Watches the holds of all threads."""

    def __init__(self) -> None:
        """Start without a thread."""
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a child of fork has no thread and holds nothing."""
        self._condition = threading.Condition()
        self._schedule = Schedule()
        self._wake_at = float("inf")
        self._runs = False

    def add(self, watch: Watch) -> None:
        """Begin to watch a hold."""
        with self._condition:
            self._schedule.add(watch)
            if not self._runs:
                self._runs = True
                thread = threading.Thread(target=self._run, name="bloomlock-watchdog", daemon=True)
                thread.start()
            elif watch.next_time() < self._wake_at:
                self._condition.notify()

    def remove(self, hold: Hold) -> None:
        """Stop watching a hold."""
        with self._condition:
            self._schedule.remove(hold)

    def _run(self) -> None:
        idle_since = boot_clock()
        while True:
            with self._condition:
                now = boot_clock()
                overdue = self._schedule.overdue(now)
                due = self._schedule.due(now)
                if len(self._schedule) or overdue:
                    idle_since = now
                elif now - idle_since > IDLE_SECONDS:
                    self._runs = False
                    return
                if not overdue and not due:
                    self._wake_at = min(self._schedule.next_time(), now + LONGEST_SLEEP)
                    self._condition.wait(max(0.0, self._wake_at - now))
                    self._wake_at = float("-inf")
            for watch in overdue:
                self._lose(watch, OUT_OF_LEASE)
            for runtime, watches in due.items():
                start_thread("bloomlock-renewal", self._renew, runtime, watches)

    def _renew(self, runtime: Any, watches: list[Watch]) -> None:
        for part in runtime.by_server(watches, key_of):
            try:
                runtime.run(renew(part, abilities_of(runtime), boot_clock, self._lose))
            except Exception:
                logger.exception("renewing locks failed")
                give_up(part, boot_clock())
        with self._condition:
            self._condition.notify()

    def _lose(self, watch: Watch, reason: str) -> None:
        with self._condition:
            self._schedule.remove(watch.hold)
        core = watch.core()
        if core is not None and core.is_held(watch.hold):
            core.lose(watch.hold, reason)


def start_thread(name: str, target: Any, *arguments: Any) -> None:
    """Run a function in a thread that does not keep the process alive."""
    threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


WATCHDOG = Watchdog()
os.register_at_fork(after_in_child=WATCHDOG.start_over)
