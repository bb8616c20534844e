"""Which workers of this machine live: each holds a lock on a file of its own.

The system frees the lock when the process ends, in whatever way. So a worker whose file is there
and not locked is dead. Of one without a file, as of one on another machine, nothing is known: what
it had is put back when its lease is over.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Iterable

_OLD_S = 86_400
"""The lease of a worker that has ended is over long before."""
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


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
