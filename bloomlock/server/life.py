"""One lock that a server holds from before its first instruction until after its last.

The starter locks a file and hands the open file down to the server. The system gives the lock
back when the last process that holds the file open is gone, however it went. So "the lock is
taken" means "a server lives on this data", also if it hangs or if its socket was removed, and no
second server can ever be started on the same files. A process id alone proves neither.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bloomlock.server.paths import open_own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def hold(path: Path) -> Iterator[int | None]:
    """Take the lock if it is free, and close this process's copy of it in the end.

    A process started inside with the yielded descriptor (`pass_fds`) goes on holding the lock.

    Yields:
        The descriptor, or None if a server lives (or somebody looks at the lock right now).
    """
    import fcntl  # noqa: PLC0415 - does not exist on Windows, where URLs are used all the same

    fd = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        os.ftruncate(fd, 0)
        os.write(fd, socket.gethostname().encode())
        yield fd
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Tell whether a server lives (or is being started)."""
    import fcntl  # noqa: PLC0415 - as above

    try:
        fd = open_own(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared, so that processes which only look do not take each other for a server.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def wait_free(path: Path, deadline: float) -> bool:
    """Wait until no server lives, at most until `deadline` (`time.monotonic`).

    Returns:
        Whether it is gone.
    """
    while is_held(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def foreign_host(path: Path) -> str | None:
    """Return the name of the host whose server holds the lock, if it is not this one.

    Home directories are shared between machines; sockets and process ids are not.
    """
    try:
        host = path.read_text()
    except OSError:
        return None
    return host if host and host != socket.gethostname() else None
