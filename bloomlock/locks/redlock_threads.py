"""Drives what is asked of several servers at once, each in a thread.

A server that does not answer keeps its thread as long as its client waits for a reply, never the
caller. Threads are daemons and end when they had nothing to do for a second, so they hold up
neither the end of the process nor stay behind a lock object.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.commands import Core, Pause
from bloomlock.runtime.clock import boot_clock

from .redlock_asking import AskEach, end_of_grace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.runtime.threads import Threads

    Job = Callable[[], None]

T = TypeVar("T")

IDLE_SECONDS = 1.0


class Workers:
    """Threads that run what they are given, as many as there is to do at once.

    What is used here is C through and through, so that a KeyboardInterrupt leaves it whole.
    """

    def __init__(self) -> None:
        """Start without threads."""
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a child of fork has no threads."""
        self._lock = threading.RLock()
        self._idle = 0
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def start(self, job: Job) -> None:
        """Run a job in a thread that has nothing to do, or in a new one."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._jobs.put(job)
                return
        try:
            threading.Thread(
                target=self._work, args=(job,), name="bloomlock-redlock", daemon=True
            ).start()
        except RuntimeError:  # there are too many threads, or the process is ending
            job()

    def _work(self, job: Job | None) -> None:
        while job is not None:
            job()
            job = None  # what it refers to is not to live on here
            with self._lock:
                self._idle += 1
            job = self._next()

    def _next(self) -> Job | None:
        try:
            return self._jobs.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            with self._lock:
                # Whoever gave a job since counts on a thread that was idle then.
                with contextlib.suppress(queue.Empty):
                    return self._jobs.get_nowait()
                self._idle -= 1
                return None


class Line:
    """What is asked of one server for one token, one after the other."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.RLock()
        self._jobs: deque[Job] = deque()
        self._runs = False

    def append(self, job: Job) -> None:
        """Run a job after all that were appended before."""
        with self._lock:
            self._jobs.append(job)
            runs = self._runs
        if not runs:
            WORKERS.start(self._run)

    def _run(self) -> None:
        with self._lock:
            if self._runs:
                return
            self._runs = True
        while True:
            with self._lock:
                if not self._jobs:
                    self._runs = False
                    return
                job = self._jobs.popleft()
            job()


class Crew:
    """Runs cores that ask several servers, by the runtime of each."""

    def __init__(self, runtimes: Sequence[Threads]) -> None:
        """Keep the runtimes."""
        self.runtimes = runtimes

    def run(self, core: Core[T]) -> T:
        """Carry out the steps of a core and return its result."""
        step: Any
        try:
            step = next(core)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = core.send(None)
                else:
                    step = core.send(self._ask(step))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def by_server(self, items: list[T], key_of: Callable[[T], str]) -> list[list[T]]:  # noqa: ARG002 - each item goes to every server
        """Return the items in groups, each of which one request may carry: alone."""
        return [[item] for item in items]

    def _ask(self, step: AskEach) -> list[Any]:
        began = boot_clock()
        answers: list[Any] = [None] * len(step.cores)
        arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for server, core in enumerate(step.cores):
            if step.lines[server] is None:
                step.lines[server] = Line()
            step.lines[server].append(self._job(server, core, arrived))
        out, until = len(answers), step.until
        while out:
            now = boot_clock()
            if until == step.until and step.enough(answers):
                until = end_of_grace(step, began, now)
            try:
                server, answer = arrived.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            answers[server] = answer
            out -= 1
        return answers

    def _job(
        self, server: int, core: Core[Any], arrived: queue.SimpleQueue[tuple[int, Any]]
    ) -> Job:
        def job() -> None:
            try:
                arrived.put((server, self.runtimes[server].run(core)))
            except Exception as error:  # noqa: BLE001 - whoever asked is told what came of it
                arrived.put((server, error))

        return job


WORKERS = Workers()
os.register_at_fork(after_in_child=WORKERS.start_over)
