"""The processes of one contender.

All are children of one small process that has imported what they need, so they start in
milliseconds. They stay alive between slices and wait for jobs.
"""

from __future__ import annotations

import gc
import multiprocessing
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from .contenders import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from .contenders import Entry
    from .place import Place

    Answer = Any

PRELOADED = ["benchmarks.contenders.claims", "benchmarks.contenders.locks", "benchmarks.crawl.job"]
LONGEST_WAIT = 300.0
"""Seconds for one slice; a process that takes longer hangs."""


class Job(Protocol):
    def prepare(self, contender: Any) -> Callable[[], Answer]:
        """Do all that is not to be timed, and return what is."""


class Worker:
    """A process that runs a function with a pipe to here as its first argument."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self._name = name

    def hear(self) -> Answer:
        """Return what it sends next.

        Raises:
            RuntimeError: If it ended instead, or says nothing for LONGEST_WAIT.
        """
        try:
            if self.pipe.poll(LONGEST_WAIT):
                return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(LONGEST_WAIT)
            status = self.process.exitcode
            raise RuntimeError(f"a process of {self._name} ended with status {status}") from None
        raise RuntimeError(f"a process of {self._name} said nothing for {LONGEST_WAIT:g} s")

    def tell(self, what: object) -> None:
        try:
            self.pipe.send(what)
        except OSError:
            self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Team:
    """The processes of one contender, which wait for jobs."""

    def __init__(self, entry: Entry, place: Place, workers: Sequence[Worker]) -> None:
        self.entry = entry
        self.place = place
        self._workers = workers
        self._busy: Sequence[Worker] = ()

    def wait_ready(self) -> None:
        for worker in self._workers:
            worker.hear()

    def run(self, *jobs: Job) -> list[Answer]:
        """Give each process one job, start them together, and return their answers."""
        self.prepare(jobs)
        return self.go()

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Give each process one job, and wait until all are ready; fewer jobs leave some idle."""
        self._busy = self._workers[: len(jobs)]
        for worker, job in zip(self._busy, jobs, strict=True):
            worker.tell(job)
        for worker in self._busy:
            worker.hear()

    def go(self) -> list[Answer]:
        """Let them start together, and return their answers."""
        for worker in self._busy:
            worker.tell("go")
        return [worker.hear() for worker in self._busy]


@contextmanager
def assembled(plan: Sequence[tuple[Entry, Place]], processes: int = 1) -> Iterator[list[Team]]:
    """Provide a team for each entry, all ready, and end them."""
    with ExitStack() as stack:
        teams = []
        for entry, place in plan:
            workers = [Worker(entry.name, _serve, entry, place) for _ in range(processes)]
            teams.append(Team(entry, place, workers))
            for worker in workers:
                stack.callback(worker.kill)
        for team in teams:
            team.wait_ready()
        yield teams


def _serve(pipe: Connection, entry: Entry, place: Place) -> None:
    contender = make(entry.made_by, place, entry.options)
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
