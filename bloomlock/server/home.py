"""The directory of the embedded server: its files, who may use it, and its life lock.

A directory of mode 0700 that belongs to this user is what protects the data: nobody else can put a
file there, or reach the socket. A directory that another user owns or can write is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from bloomlock.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME_VARIABLE = "BLOOMLOCK_HOME"
WAY_OUT = f"set {HOME_VARIABLE} to another directory or give the URL of a server"
_WRITABLE_BY_OTHERS = 0o022
_SOCKET_NAME = "server.sock"
_LIFE_NAME = "server.alive"
# sun_path without its closing zero byte.
_SOCKET_LIMIT = 103 if sys.platform == "darwin" else 107


class Home:
    """The files of one embedded server.

    The server holds a lock, its life lock, from before its first instruction until after its last:
    the starter locks a file and hands the open file down. The system gives the lock back when the
    last process that holds the file open is gone, however it went. So a taken lock means that a
    server lives on this data, also if it hangs or if its socket was removed, and no second server
    can ever be started on the same files. A process id alone proves neither.
    """

    def __init__(self, data_dir: Path, socket_path: Path) -> None:
        self.data_dir = data_dir
        # In the data directory wherever the path is short enough.
        self.socket_path = socket_path
        self.url = socket_url(socket_path)
        # The file of the life lock; it holds the name of the server's host.
        self.life_file = data_dir / _LIFE_NAME
        # Written by the server, some time after it took the life lock.
        self.pid_file = data_dir / "server.pid"
        self.log_file = data_dir / "server.log"

    def pid(self) -> int | None:
        try:
            return int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None

    def prepare(self) -> None:
        for path in {self.data_dir, self.socket_path.parent}:
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            except FileExistsError:
                pass  # something else, which is refused below
            except OSError as error:
                raise ServerError(
                    f"the embedded server's directory {path} cannot be created: "
                    f"{error.strerror}; {WAY_OUT}"
                ) from error
            _is_private(path)

    def has_socket(self) -> bool:
        """Return whether there is a socket; refuse one that others could have put there."""
        if not _is_private(self.data_dir) or not _is_private(self.socket_path.parent):
            return False
        found = _lstat(self.socket_path)
        if found is not None and not stat.S_ISSOCK(found.st_mode):
            raise ServerError(
                f"{self.socket_path} is not a socket; move it away so that the embedded server "
                f"can listen there, or {WAY_OUT}"
            )
        return found is not None

    @contextmanager
    def hold_life_lock(self) -> Iterator[int | None]:
        """Take the life lock if it is free, and close this process's copy of it in the end.

        A process started inside with the yielded descriptor (`pass_fds`) goes on holding the lock.
        None is yielded if a server lives, or if another process looks at the lock right now.
        """
        fd = os.open(self.life_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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

    def is_alive(self) -> bool:
        try:
            with self.life_file.open("rb") as file:
                # Shared, so that processes which only look do not take each other for a server.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            pass
        return False

    def refuse_other_host(self) -> None:
        """Refuse data that a server on another machine works on.

        Home directories are shared between machines; sockets and process ids are not.
        """
        try:
            host = self.life_file.read_text()
        except OSError:
            return
        if host and host != socket.gethostname():
            raise ServerError(
                f"the data directory {self.data_dir} is in use by the embedded server of the host "
                f"{host}; {WAY_OUT}"
            )


def find_home() -> Home:
    """Compute the paths of this user's embedded server; touches nothing."""
    import platformdirs  # noqa: PLC0415 - clients of a server with a URL need none of it

    named = os.environ.get(HOME_VARIABLE)
    path = Path(named or platformdirs.user_data_dir("bloomlock", appauthor=False))
    if str(path).startswith("~"):
        path = path.expanduser()
    if not path.is_absolute():
        raise ConfigurationError(
            f"{HOME_VARIABLE} is {named!r}: it must be an absolute path, so that processes in "
            f"other directories find the same server"
        )
    # Two spellings of one directory have to lead to one socket.
    data_dir = path.resolve()
    socket_path = data_dir / _SOCKET_NAME
    if not _fits_socket(socket_path):
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
        socket_path = _fixed_temp_dir() / f"bloomlock-{os.geteuid()}-{digest}" / _SOCKET_NAME
        if not _fits_socket(socket_path):
            raise ServerError(
                f"the data directory {data_dir} is too long for a unix socket, and so is the "
                f"temporary directory; {WAY_OUT}"
            )
    return Home(data_dir, socket_path)


def socket_url(path: Path) -> str:
    return f"unix://{quote(os.fsencode(path))}?db=0"


def make_short_temp_dir() -> Path:
    for base in (Path(tempfile.gettempdir()), _fixed_temp_dir()):
        if _fits_socket(base / "bloomlock-xxxxxxxxxxxx" / _SOCKET_NAME):
            return Path(tempfile.mkdtemp(prefix="bloomlock-", dir=base))
    raise ServerError(
        f"the temporary directory {tempfile.gettempdir()} is too long for a unix socket; set "
        f"TMPDIR to a shorter one"
    )


def _fits_socket(path: Path) -> bool:
    """Return whether a socket can be bound to `path` and its URL leads back to it."""
    try:
        return len(str(path).encode()) <= _SOCKET_LIMIT
    except UnicodeEncodeError:  # bytes that are no UTF-8 do not survive redis-py's URL parser
        return False


def _fixed_temp_dir() -> Path:
    # TMPDIR may differ between the processes of one user, and all have to find the same socket.
    fixed = Path("/tmp")  # noqa: S108 - a 0700 directory with checked owner is made inside it
    return fixed if fixed.is_dir() else Path(tempfile.gettempdir())


def _is_private(path: Path) -> bool:
    """Return whether a directory exists; refuse one that others own or write, close it to them."""
    found = _lstat(path)
    if found is None:
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise ServerError(f"{path} is not a directory; move it away, or {WAY_OUT}")
    mode = stat.S_IMODE(found.st_mode)
    if mode & _WRITABLE_BY_OTHERS:
        raise ServerError(
            f"{path} can be written by other users (mode {mode:04o}), who may have put files "
            f"there; look at what it holds and chmod it to 0700, or {WAY_OUT}"
        )
    if mode & 0o077:
        names = {entry.name for entry in path.iterdir()}
        if names and _LIFE_NAME not in names:
            # A directory that has another purpose keeps its mode.
            raise ServerError(
                f"{path} is open to other users and holds other files, so the embedded server is "
                f"not put there; use a directory of its own, or {WAY_OUT}"
            )
        path.chmod(0o700)
    return True


def _lstat(path: Path) -> os.stat_result | None:
    """Return what a path is, None if it is nothing; refuse what another user owns."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ServerError(f"{path} cannot be read: {error.strerror}; {WAY_OUT}") from error
    if found.st_uid != os.geteuid():
        raise ServerError(
            f"{path} belongs to user {found.st_uid} and this process runs as user "
            f"{os.geteuid()}, so the embedded server is not used; {WAY_OUT}"
        )
    return found
