"""Drives what is asked of several servers at once, each in a thread.

A server that does not answer keeps its thread as long as its client waits for a reply, never the
caller.
"""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any, TypeVar

from bloomlock.effects import Core, Limit, Pause
from bloomlock.runtime.clock import boot_clock
from bloomlock.runtime.workers import Line

from .redlock_asking import AskEach, end_of_grace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.runtime.threads import Threads
    from bloomlock.runtime.workers import Job

T = TypeVar("T")


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
                elif isinstance(step, Limit):
                    # Each server has a time limit of its own here.
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
