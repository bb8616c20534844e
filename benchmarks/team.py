"""The processes of one contender."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .contenders import Entry
    from .jobs import Answer, Job
    from .locks_jobs import Job as LockJob
    from .place import Place

    AnyJob = Job | LockJob

ROOT = Path(__file__).parent.parent
LONGEST_WAIT = 300.0
"""Seconds for one slice; a process that takes longer hangs."""


class Team:
    """Processes that wait for jobs; to be used as a context manager."""

    def __init__(self, entry: Entry, place: Place, processes: int) -> None:
        self.entry = entry
        self.place = place
        self._count = processes
        self._processes: list[subprocess.Popen[str]] = []
        self._busy: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def start(self) -> None:
        """Start the processes; `wait_ready` waits until they are ready."""
        order = {
            "made_by": self.entry.made_by,
            "jobs": "locks_jobs" if self.entry.made_by == "locks.Locks" else "jobs",
            "place": asdict(self.place),
            "options": dict(self.entry.options),
        }
        for _ in range(self._count):
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", json.dumps(order)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # Not in the group that Ctrl-C reaches: the team ends its processes by itself.
                process_group=0,
            )
            self._processes.append(process)

    def wait_ready(self) -> None:
        """Wait until every process has its connection."""
        for process in self._processes:
            self._hear(process)

    def run(self, jobs: Sequence[AnyJob]) -> list[Answer]:
        """Give each process one job, start them together, and return their answers.

        Fewer jobs than processes leave the others waiting.
        """
        self.prepare(jobs)
        return self.go()

    def prepare(self, jobs: Sequence[AnyJob]) -> None:
        """Give each process one job, and wait until all are ready to start."""
        self._busy = self._processes[: len(jobs)]
        for process, job in zip(self._busy, jobs, strict=True):
            self._tell(process, asdict(job))
        for process in self._busy:
            self._hear(process)

    def go(self) -> list[Answer]:
        """Let them start together, and return their answers."""
        for process in self._busy:
            self._tell(process, "go")
        return [self._hear(process) for process in self._busy]

    def _tell(self, process: subprocess.Popen[str], what: object) -> None:
        if process.stdin is None or process.poll() is not None:
            raise RuntimeError(self._ended(process))
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()

    def _hear(self, process: subprocess.Popen[str]) -> Answer:
        if process.stdout is None:
            raise RuntimeError(self._ended(process))
        readable, _, _ = select.select([process.stdout], [], [], LONGEST_WAIT)
        if not readable:
            raise RuntimeError(
                f"a process of {self.entry.name} said nothing for {LONGEST_WAIT:g} s"
            )
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(self._ended(process))
        answer: Any = json.loads(line)
        return dict(answer)

    def _ended(self, process: subprocess.Popen[str]) -> str:
        return f"a process of {self.entry.name} ended with status {process.wait()}"


@contextmanager
def assembled(plan: Sequence[tuple[Entry, Place]], processes: int) -> Iterator[list[Team]]:
    """Provide a team for each entry, all ready, and end them."""
    with ExitStack() as stack:
        teams = [stack.enter_context(Team(entry, place, processes)) for entry, place in plan]
        for team in teams:
            team.start()
        for team in teams:
            team.wait_ready()
        yield teams
