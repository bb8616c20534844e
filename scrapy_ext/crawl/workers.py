"""The worker processes of a job: started together, watched, and ended without exception."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

# After its own time for the last pages a worker is asked once more, then killed.
_GRACE = 3.0


class Workers:
    """The worker processes.

    Each has a session of its own, so that Ctrl-C reaches the job alone, and ends by itself when
    its standard input does, so that none outlives a job that was killed.
    """

    def __init__(self, folder: Path, workers: int, last_pages: float) -> None:
        """Name the files of the workers.

        Args:
            folder: A private folder that holds `config.json`.
            workers: How many processes.
            last_pages: How long a worker may take to end, in seconds.
        """
        self.journals = [folder / f"worker-{number}.journal" for number in range(workers)]
        self._config = folder / "config.json"
        self._last_pages = last_pages
        self._processes: list[subprocess.Popen[bytes]] = []
        self._put_down: set[int] = set()

    def __enter__(self) -> Self:
        """Start the processes."""
        try:
            for number, journal in enumerate(self.journals):
                self._processes.append(self._start(journal, number))
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End whatever still runs."""
        self.kill()

    def _start(self, journal: Path, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "scrapy_ext.crawl.worker"]
        with journal.with_suffix(".err").open("wb") as errors:
            # S603: this very interpreter and the module beside this one.
            return subprocess.Popen(  # noqa: S603
                [*command, str(self._config), str(journal), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in order."""
        return [process.pid for process in self._processes]

    def running(self) -> list[int]:
        """Return the numbers of the workers that run."""
        return [number for number, each in enumerate(self._processes) if each.poll() is None]

    def failures(self) -> list[str]:
        """Return a sentence for each worker that ended in another way than it should."""
        return [
            f"worker {number} (process {process.pid}) {self._end(number, process.returncode)}"
            for number, process in enumerate(self._processes)
            if process.poll() not in {None, 0}
        ]

    def _end(self, number: int, code: int) -> str:
        """Say how a worker ended, and its last words."""
        if number in self._put_down:
            return "still ran at the end and was killed"
        if code < 0:
            # What it logged last is no reason.
            return f"was killed by signal {-code}{self._last_words(number, '.err')}"
        return f"ended with status {code}{self._last_words(number, '.err', '.log')}"

    def stop(self) -> None:
        """Let the workers finish the pages they have in hand, and wait for their end."""
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        deadline = time.monotonic() + self._last_pages + _GRACE
        for number, process in enumerate(self._processes):
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._put_down.add(number)
                process.kill()

    def kill(self) -> None:
        """End the workers at once."""
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                self._put_down.add(number)
                process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _last_words(self, number: int, *endings: str) -> str:
        """Return the last line a failed worker wrote into the first of its files that has one."""
        journal = self.journals[number]
        for source in map(journal.with_suffix, endings):
            if source.exists():
                lines = source.read_text("utf-8", errors="replace").strip().splitlines()
                if lines:
                    return ": " + lines[-1][-300:]
        return ""
