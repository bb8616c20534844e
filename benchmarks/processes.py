"""The processes of one contender.

All are children of one small process that has imported what they need, so they start in
milliseconds. They stay alive between slices and wait for jobs.
"""

from __future__ import annotations

import gc
import multiprocessing
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from .contenders import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from .contenders import Entry
    from .place import Place

PRELOADED = ["benchmarks.contenders.claims", "benchmarks.contenders.locks", "benchmarks.crawl.job"]
LONGEST_WAIT = 300.0
"""Seconds for one slice; a process that takes longer hangs."""


class Worker:
    """A process that runs a function with a pipe to here as its first argument."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """Return what it sends next; RuntimeError if it has ended, or hangs."""
        if not self.pipe.poll(LONGEST_WAIT):
            raise RuntimeError(f"a process said nothing for {LONGEST_WAIT:g} s")
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(LONGEST_WAIT)
            raise RuntimeError(f"a process ended with {self.process.exitcode}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Team:
    """The processes of one contender, which wait for jobs."""

    def __init__(self, entry: Entry, workers: Sequence[Worker]) -> None:
        self.entry = entry
        self._workers = workers

    def run(self, jobs: Sequence[Any], on_start: Callable[[], None]) -> list[Any]:
        """Give each process one job, and start them together; return their answers.

        Fewer jobs leave some idle.
        """
        busy = self._workers[: len(jobs)]
        for worker, job in zip(busy, jobs, strict=True):
            worker.pipe.send(job)
        for worker in busy:
            worker.hear()
        on_start()
        for worker in busy:
            worker.pipe.send("go")
        return [worker.hear() for worker in busy]


@contextmanager
def assembled(plan: Sequence[tuple[Entry, Place]], processes: int = 1) -> Iterator[list[Team]]:
    """Provide a team for each entry, all ready, and end them."""
    with ExitStack() as stack:
        started = [
            (entry, [stack.enter_context(Worker(_serve, entry, place)) for _ in range(processes)])
            for entry, place in plan
        ]
        for _, workers in started:
            for worker in workers:
                worker.hear()
        yield [Team(entry, workers) for entry, workers in started]


def _serve(pipe: Connection, entry: Entry, place: Place) -> None:
    contender = make(entry, place)
    gc.freeze()  # so that no collection ever goes through all that was imported
    pipe.send("ready")
    while True:
        try:
            work = pipe.recv().prepare(contender)
            pipe.send("ready")
            pipe.recv()
        except EOFError:
            return
        pipe.send(work())
