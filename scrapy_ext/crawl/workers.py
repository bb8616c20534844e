"""The worker processes of a job: how it starts and ends them, and which on this machine live.

Each worker holds a lock on a file of its own. The system frees the lock when the process ends, in
whatever way. So a worker whose file is there and not locked is dead. Of one without a file, as of
one on another machine, nothing is known: what it had is put back when its lease is over.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Iterable

# A worker that takes this much longer than its last pages may take is killed.
_GRACE = 3.0
_OLD_S = 86_400
"""The lease of a worker that has ended is over long before."""
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Workers:
    """The worker processes.

    Each has a session of its own, so that Ctrl-C reaches the job alone, and ends by itself when
    its standard input does, so that none outlives a job that was killed.
    """

    def __init__(self, folder: Path, workers: int, last_pages: float) -> None:
        self.journals = [folder / f"worker-{number}.journal" for number in range(workers)]
        self._config = folder / "config.json"
        self._last_pages = last_pages
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def __enter__(self) -> Self:
        try:
            for number, journal in enumerate(self.journals):
                self._processes.append(self._start(journal, number))
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _start(self, journal: Path, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "scrapy_ext.crawl.worker"]
        with journal.with_suffix(".err").open("wb") as errors:
            # S603: this very interpreter and a module of ours.
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
        """Say how a worker ended, and the last line it wrote."""
        if number in self._killed:
            return "still ran at the end and was killed"
        if code < 0:
            # What it logged last is no reason.
            return f"was killed by signal {-code}{self._log_tail(number, '.err')}"
        return f"ended with status {code}{self._log_tail(number, '.err', '.log')}"

    def stop(self) -> None:
        """Let the workers finish the pages they have in flight, and wait for their end."""
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        deadline = time.monotonic() + self._last_pages + _GRACE
        for number, process in enumerate(self._processes):
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._killed.add(number)
                process.kill()

    def kill(self) -> None:
        """End the workers at once; none runs on return."""
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                self._killed.add(number)
                process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _log_tail(self, number: int, *endings: str) -> str:
        """Return the last line a failed worker wrote into the first of its files that has one."""
        journal = self.journals[number]
        for source in map(journal.with_suffix, endings):
            if source.exists():
                lines = source.read_text("utf-8", errors="replace").strip().splitlines()
                if lines:
                    return ": " + lines[-1][-300:]
        return ""


def new_workers(count: int) -> list[str]:
    """Return names that no other workers have; a name shows the machine."""
    run = secrets.token_hex(6)
    return [f"{_host()}-{run}-{number}" for number in range(count)]


def hold(worker: str) -> None:
    """Lock the file of this process, a worker, until it ends.

    Where there can be no such file, its death shows when its lease is over.
    """
    import fcntl  # noqa: PLC0415 - does not exist on Windows

    try:
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(_path(worker), _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        forget([worker])


def is_dead(worker: str) -> bool:
    """Return whether a worker is known to have ended; False: it lives, or it is not known."""
    import fcntl  # noqa: PLC0415 - as above

    if "/" in worker or not worker.startswith(f"{_host()}-"):
        return False
    try:
        descriptor = os.open(_path(worker), _OPEN)
    except OSError:
        return False
    try:
        # Shared: two jobs that look at the same time do not take each other for the worker.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def forget(workers: Iterable[str]) -> None:
    """Remove the files of workers that have ended and hold nothing any more."""
    for worker in workers:
        with suppress(OSError):
            _path(worker).unlink()


def forget_old() -> None:
    """Remove the files that jobs left that were killed and never gone on with."""
    for path in _folder().glob("*.alive"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _OLD_S and is_dead(path.stem):
                path.unlink()


def _host() -> str:
    return socket.gethostname().replace(":", "-").replace("/", "-")


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("bloomlock")) / "crawl"


def _path(worker: str) -> Path:
    return _folder() / f"{worker}.alive"
