"""The one server that all processes of a user share: find, start, stop and look at it.

The directory belongs to this user. A directory that others own or can write is refused, so no other
user can put a file there. Its files and the socket are open to this user alone.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.refusals import is_busy, is_refusal
from bloomlock.server.process import (
    connect,
    fits_socket,
    log_size,
    log_tail,
    quote_lines,
    socket_url,
    valkey_binary,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

HOME_VARIABLE = "BLOOMLOCK_HOME"
WAY_OUT = f"set {HOME_VARIABLE} to another directory or give the URL of a server"

_START_TIMEOUT = 30.0
_PING_TIMEOUT = 1.0
_STATUS_TIMEOUT = 1.0
# A living server that says nothing for this many seconds is taken to hang.
_HANG_TIMEOUT = 5.0
_PAUSE = 0.005
_LOG_LIMIT = 1 << 20
_NEARLY_FULL = 1 << 16
_WRITABLE_BY_OTHERS = 0o022


def embedded_url() -> str:
    """Start the embedded server if it does not run, and return its URL when it is ready.

    Costs one connection and one PING if it runs, some 20-50 ms if it has to be started, and
    the time it needs to read its data, 30 s at most.

    Raises:
        ServerError: It cannot be started or does not answer; the sentence says why.
        ConfigurationError: BLOOMLOCK_HOME is not an absolute path.
    """
    deadline = time.monotonic() + _START_TIMEOUT
    with _home() as home:
        home.prepare()
        log_start: int | None = None
        heard_at, pid = time.monotonic(), home.pid()
        while True:
            try:
                with connect(home.socket_path, _PING_TIMEOUT) as client:
                    client.ping()
            except RedisError as error:
                refusal = error if is_refusal(error) else None
            else:
                return home.url
            now = time.monotonic()
            if refusal is not None and not is_busy(refusal):
                raise _unreachable(home, refusal)
            if refusal is not None or home.pid() != pid:
                heard_at, pid = now, home.pid()
            if not home.is_alive():
                if log_start is not None:
                    raise _died(home, log_tail(home.log_file, log_start))
                log_start = _start_once(home, deadline)
                heard_at = time.monotonic()
            # Without an id it is being started, which may take long on a machine that is busy.
            elif now >= deadline or (pid is not None and now - heard_at >= _HANG_TIMEOUT):
                home.refuse_other_host()
                raise _unreachable(home, refusal)
            time.sleep(_PAUSE)


def stop(timeout: float = 10.0) -> bool:
    """Stop the embedded server; its data stays. Returns when its process has ended.

    A server that does not react is killed. No acknowledged write is lost by that: the
    append-only file is handed to the system before each reply.

    Args:
        timeout: The longest time to take, in seconds; half of it for a peaceful end.

    Returns:
        True if a server was stopped, False if none was running.

    Raises:
        ServerError: The server cannot be ended, or runs on another host.
        ConfigurationError: `timeout` is no positive number, or BLOOMLOCK_HOME is not an
            absolute path.
    """
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ConfigurationError(f"timeout is {timeout!r}: it must be a number of seconds above 0")
    with _home() as home:
        if not (home.exists() and home.is_alive()):
            return False
        home.refuse_other_host()
        _end(home, time.monotonic() + timeout)
    logger.info("stopped the embedded server in %s", home.data_dir)
    return True


def status() -> dict[str, Any] | None:
    """Return what INFO of the embedded server says; None: it does not run, and is not started.

    Takes 1-2 s at the most.

    Raises:
        ServerError: A server lives but does not answer, or runs on another host.
        ConfigurationError: BLOOMLOCK_HOME is not an absolute path.
    """
    deadline = time.monotonic() + _STATUS_TIMEOUT
    with _home() as home:
        while True:
            if not (home.exists() and home.is_alive()):
                return None
            home.refuse_other_host()
            try:
                with connect(home.socket_path, _STATUS_TIMEOUT) as client:
                    return dict(client.info())
            except RedisError as error:
                if is_refusal(error):
                    raise _unreachable(home, error) from error
            # It may be in the middle of its start or of its end.
            if time.monotonic() >= deadline:
                raise _unreachable(home, None)
            time.sleep(_PAUSE)


class Home:
    """The files of one embedded server.

    The server holds a lock, its life lock, from before its first instruction until after its last:
    the starter locks a file and hands the open file down, and the system gives the lock back when
    the last process that holds the file open is gone. So a taken lock means that a server lives on
    this data, also if it hangs, and no second one can be started on the same files.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.socket_path = data_dir / "server.sock"
        self.url = socket_url(self.socket_path)
        # The file of the life lock; it holds the name of the server's host.
        self.life_file = data_dir / "server.alive"
        # Written by the server, some time after it took the life lock.
        self.pid_file = data_dir / "server.pid"
        self.log_file = data_dir / "server.log"

    def pid(self) -> int | None:
        try:
            return int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None

    def prepare(self) -> None:
        with suppress(FileExistsError):  # something else, which is refused
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.exists()

    def exists(self) -> bool:
        """Return whether the directory exists; refuse one that others own or can write."""
        try:
            found = self.data_dir.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if found.st_uid != os.geteuid():
            raise ServerError(
                f"{self.data_dir} belongs to user {found.st_uid} and this process runs as user "
                f"{os.geteuid()}, so the embedded server is not used; {WAY_OUT}"
            )
        if not stat.S_ISDIR(found.st_mode):
            raise ServerError(f"{self.data_dir} is not a directory; move it away, or {WAY_OUT}")
        mode = stat.S_IMODE(found.st_mode)
        if mode & _WRITABLE_BY_OTHERS:
            raise ServerError(
                f"{self.data_dir} can be written by other users (mode {mode:04o}), who may have "
                f"put files there; look at what it holds and chmod it to 0700, or {WAY_OUT}"
            )
        return True

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
        # Home directories are shared between machines; sockets and process ids are not.
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
    """Return the directory of the embedded server: BLOOMLOCK_HOME, or one of this user."""
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
    home = Home(path.resolve())
    if not fits_socket(home.socket_path):
        raise ServerError(
            f"the data directory {home.data_dir} is too long for a unix socket, or its name is no "
            f"UTF-8; {WAY_OUT}"
        )
    return home


@contextmanager
def _home() -> Iterator[Home]:
    home = find_home()
    try:
        yield home
    except OSError as error:
        raise ServerError(
            f"the embedded server's directory {home.data_dir} cannot be used: {error.strerror} "
            f"({error.filename or home.life_file}); {log_tail(home.log_file)}; {WAY_OUT}"
        ) from error


def _start_once(home: Home, deadline: float) -> int | None:
    """Start a server unless another process just did; return where its part of the log begins."""
    with os.fdopen(os.open(home.life_file, os.O_RDWR | os.O_CREAT, 0o600), "r+") as life:
        try:
            fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        life.truncate()
        life.write(socket.gethostname())
        life.flush()
        home.pid_file.unlink(missing_ok=True)
        if log_size(home.log_file) > _LOG_LIMIT:
            home.log_file.replace(home.log_file.with_suffix(".log.1"))
        log_start = log_size(home.log_file)
        # The server goes on holding the life lock by its copy of the open file.
        _spawn(home, life.fileno(), log_start, deadline)
    logger.info("started the embedded server in %s", home.data_dir)
    return log_start


def _spawn(home: Home, life_fd: int, log_start: int, deadline: float) -> None:
    binary = valkey_binary()
    directives = {
        "daemonize": "yes",
        "dir": str(home.data_dir),
        "pidfile": str(home.pid_file),
        "logfile": str(home.log_file),
        "port": "0",
        "unixsocket": str(home.socket_path),
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "everysec",
        # A power cut leaves half a command at the end of the file: everything before it counts.
        "aof-load-truncated": "yes",
        "save": "",
        # A filter that loses keys under memory pressure would forget what it has seen.
        "maxmemory-policy": "noeviction",
    }
    arguments = [part for name, value in directives.items() for part in (f"--{name}", value)]
    try:
        # Its own session, and detached by itself (daemonize): no Ctrl-C of the starter reaches
        # it, and it is neither a child nor a zombie of the starter.
        done = subprocess.run(  # noqa: S603 - a fixed program, its arguments as a list
            [str(binary), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=home.data_dir,
            pass_fds=(life_fd,),
            start_new_session=True,
            umask=0o077,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{binary} did not go into the background in time") from error
    except OSError as error:
        raise ServerError(f"{binary} cannot be run: {error.strerror}; {WAY_OUT}") from error
    if done.returncode != 0:
        output = quote_lines(done.stdout.decode(errors="replace"))
        raise _died(home, output or log_tail(home.log_file, log_start))


def _end(home: Home, deadline: float) -> None:
    half = (time.monotonic() + deadline) / 2
    pid = home.pid()
    # A server that has just been started has not written its process id yet.
    while pid is None and home.is_alive() and time.monotonic() < deadline:
        pid = home.pid()
        time.sleep(_PAUSE)
    for number, until in ((signal.SIGTERM, half), (signal.SIGKILL, deadline)):
        # The id of a server that crashed stands there until the next one is started.
        if pid is not None and home.is_alive() and home.pid() == pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while time.monotonic() < until:
            # Under another id another process has started the next one.
            if not home.is_alive() or home.pid() not in {pid, None}:
                return
            time.sleep(_PAUSE)
    raise ServerError(
        f"the embedded server in {home.data_dir} (pid {pid or 'unknown'}) cannot be ended"
    )


def _died(home: Home, log: str) -> ServerError:
    full = ""
    with suppress(OSError):
        if shutil.disk_usage(home.data_dir).free < _NEARLY_FULL:
            full = "the disk is full; "
    return ServerError(
        f"the embedded server in {home.data_dir} ended while it was starting; {full}{log}"
    )


def _unreachable(home: Home, refusal: RedisError | None) -> ServerError:
    who = f"the embedded server in {home.data_dir} (pid {home.pid() or 'unknown'})"
    if refusal is None:
        return ServerError(
            f"{who} runs but does not answer; end it with `bloomlock server stop`, or {WAY_OUT}"
        )
    if is_busy(refusal):
        return ServerError(f"{who} is not ready in time: {refusal}; try again later")
    return ServerError(f"{who} cannot work: {refusal}; {log_tail(home.log_file)}")
