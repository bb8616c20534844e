"""One thread for all locks of the process: renews what is held, tells what is lost.

It never talks to a server itself: renewals run in a short-lived thread for each client that has
some due, so a server that does not answer holds up neither the locks of others nor the news that
a lock is lost. A child of fork starts with nothing to watch.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from bloomlock.runtime.clock import boot_clock

from .schedule import (
    AT_END_SECONDS,
    LONGEST_SLEEP,
    Schedule,
    Watch,
    give_back,
    give_up,
    key_of,
    renew,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
        # Both are C through and through: a KeyboardInterrupt in the middle of a Condition or an
        # Event leaves it locked, and then nothing would be renewed any more.
        self._lock = threading.RLock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._schedule = Schedule()
        self._uncalled: deque[Callable[[], object]] = deque()
        self._idle_since = boot_clock()
        self._wake_at = float("-inf")
        self._runs = False

    def add(self, watch: Watch) -> None:
        """Begin to watch a hold."""
        with self._lock:
            self._schedule.add(watch)
            runs = self._runs
        if not runs:
            start_thread("bloomlock-watchdog", self._run)
        elif watch.next_time() < self._wake_at:
            self._wake.put(None)

    def remove(self, hold: Hold) -> None:
        """Stop watching a hold."""
        with self._lock:
            self._schedule.remove(hold)

    def give_back_all(self) -> None:
        """Release what is held when the process ends, but for what a running thread holds.

        The main thread is at its end then. A daemon thread may still work under its locks.
        """
        with self._lock:
            abandoned = self._schedule.take_abandoned(_is_at_its_end)
        until = boot_clock() + AT_END_SECONDS
        for watch in abandoned:
            try:
                watch.runtime.run(give_back(watch, until))
            except Exception:
                logger.exception("a lock was not released at the end and is left to expire")

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in a thread of its own, as soon as there may be one more."""
        try:
            start_thread("bloomlock-callback", function)
        except RuntimeError as error:
            logger.warning("a callback of a lock has to wait: %s", error)
            self._uncalled.append(function)

    def _run(self) -> None:
        with self._lock:
            if self._runs:
                return
            self._runs = True
        self._idle_since = boot_clock()
        goes_on = True
        while goes_on:
            try:
                goes_on = self._look()
            except BaseException:
                # Without this thread every lock of the process would be lost.
                logger.exception("watching locks failed")
                self._sleep(LONGEST_SLEEP)

    def _look(self) -> bool:
        """Do what is due, or sleep until something is; False: there is nothing to watch."""
        with self._lock:
            now = boot_clock()
            over = self._schedule.over(now)
            due = self._schedule.due(now)
            if len(self._schedule) or over or self._uncalled:
                self._idle_since = now
            elif now - self._idle_since > IDLE_SECONDS:
                self._runs = False
                return False
            self._wake_at = min(self._schedule.next_time(), now + LONGEST_SLEEP)
        for watch, reason in over:
            self._lose(watch, reason)
        for (runtime, _), watches in due.items():
            self._start_renewal(runtime, watches)
        for _ in range(len(self._uncalled)):
            self.call(self._uncalled.popleft())
        if not over and not due:
            self._sleep(self._wake_at - now)
        return True

    def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=max(0.0, seconds))
            while True:
                self._wake.get_nowait()

    def _start_renewal(self, runtime: Any, watches: list[Watch]) -> None:
        try:
            start_thread("bloomlock-renewal", self._renew, runtime, watches)
        except RuntimeError as error:  # there are too many threads
            logger.warning("locks could not be renewed yet: %s", error)
            give_up(watches, boot_clock())

    def _renew(self, runtime: Any, watches: list[Watch]) -> None:
        try:
            for part in runtime.by_server(watches, key_of):
                try:
                    runtime.run(renew(part, boot_clock, self._lose))
                except Exception:
                    logger.exception("renewing locks failed")
        finally:
            give_up(watches, boot_clock())
            self._wake.put(None)

    def _lose(self, watch: Watch, reason: str) -> None:
        self.remove(watch.hold)
        core = watch.core()
        if core is not None:
            core.lose_behind(watch.hold, reason)


def start_thread(name: str, target: Any, *arguments: Any) -> None:
    """Run a function in a thread that does not keep the process alive."""
    threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


def _is_at_its_end(owner: object) -> bool:
    return not isinstance(owner, threading.Thread) or (
        owner is threading.main_thread() or not owner.is_alive()
    )


WATCHDOG = Watchdog()
atexit.register(WATCHDOG.give_back_all)
os.register_at_fork(after_in_child=WATCHDOG.start_over)
