"""The one server that all processes of a user share: find, start, stop and look at it."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server.home import WAY_OUT, Home, find_home
from bloomlock.server.process import (
    Answer,
    connect,
    log_size,
    log_tail,
    ping,
    quote_lines,
    valkey_binary,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_PING_TIMEOUT = 1.0
_STATUS_TIMEOUT = 1.0
# A living server that says nothing for this many seconds is taken to hang.
_HANG_TIMEOUT = 5.0
_LOG_LIMIT = 1 << 20
_NEARLY_FULL = 1 << 16


@dataclass(frozen=True)
class ServerStatus:
    """What is known of the embedded server.

    Attributes:
        running: Whether it lives; everything from `pid` on is None if it does not.
        data_dir: Directory of its data.
        socket_path: Its unix socket.
        url: Its address for redis-py.
        pid: Process id.
        loading: Whether it is still reading its data and takes no commands yet.
        version: Version of Valkey.
        uptime: Seconds since its start.
        memory_bytes: Memory it takes.
        aof_bytes: Size of its append-only file; None also while it is loading.
        keys: Number of keys in all its databases.
        refuses_writes: Why it refuses writes; None if it takes them.
    """

    running: bool
    data_dir: Path
    socket_path: Path
    url: str
    pid: int | None = None
    loading: bool | None = None
    version: str | None = None
    uptime: int | None = None
    memory_bytes: int | None = None
    aof_bytes: int | None = None
    keys: int | None = None
    refuses_writes: str | None = None


def embedded_url(timeout: float = 30.0) -> str:
    """Return the URL of the embedded server, which is started if it does not run.

    Costs one connection and one PING if it runs, some 20-50 ms if it has to be started, and
    the time it needs to read its data.

    Args:
        timeout: How long to wait for a server that starts or reads its data, in seconds. One
            that is up and silent is given up after 5 s.

    Returns:
        A URL for `redis.Redis.from_url`, `unix:///.../server.sock?db=0`.

    Raises:
        ServerError: It cannot be started or does not answer; the sentence says why.
        ConfigurationError: `timeout` is no positive number, or BLOOMLOCK_HOME is not an
            absolute path.
    """
    start(timeout)
    return find_home().url


def start(timeout: float = 30.0) -> bool:  # noqa: C901 - one loop with its cases
    """Start the embedded server if it does not run, and wait until it is ready.

    Args:
        timeout: As for `embedded_url`.

    Returns:
        True if this call started it, False if it was running.

    Raises:
        ServerError: As for `embedded_url`.
        ConfigurationError: As for `embedded_url`.
    """
    _check_timeout(timeout)
    deadline = time.monotonic() + timeout
    with _home() as home:
        home.prepare()
        log_start: int | None = None
        heard_at, pid = time.monotonic(), home.pid()
        pause = 0.002
        while True:
            answer = Answer()
            if home.has_socket():
                left = deadline - time.monotonic()
                answer = ping(home.socket_path, max(0.1, min(_PING_TIMEOUT, left)))
            now = time.monotonic()
            if answer.ready:
                return log_start is not None
            if answer.text and not answer.busy:
                raise _unreachable(home, answer)
            if answer.busy or home.pid() != pid:
                heard_at, pid = now, home.pid()
            if not home.is_alive():
                if log_start is not None:
                    raise _died(home, log_tail(home.log_file, log_start))
                log_start = _start_once(home, deadline)
                heard_at = time.monotonic()
            elif now >= deadline:
                home.refuse_other_host()
                raise _unreachable(home, answer)
            elif now - heard_at >= _HANG_TIMEOUT and pid is not None:
                home.refuse_other_host()
                if home.has_socket():
                    raise _unreachable(home, answer)
                # No client can reach a server whose socket was removed.
                logger.warning("restarting the embedded server in %s: no socket", home.data_dir)
                _end(home, pid, deadline)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)


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
        ConfigurationError: As for `embedded_url`.
    """
    _check_timeout(timeout)
    with _home() as home:
        home.has_socket()
        if not home.is_alive():
            return False
        home.refuse_other_host()
        _end(home, None, time.monotonic() + timeout)
    logger.info("stopped the embedded server in %s", home.data_dir)
    return True


def status() -> ServerStatus:
    """Look at the embedded server; starts and creates nothing. Takes 1-2 s at the most.

    Raises:
        ServerError: A server lives but does not answer, or runs on another host.
        ConfigurationError: BLOOMLOCK_HOME is not an absolute path.
    """
    deadline = time.monotonic() + _STATUS_TIMEOUT
    with _home() as home:
        while True:
            home.has_socket()
            if not home.is_alive():
                return ServerStatus(False, home.data_dir, home.socket_path, home.url)
            home.refuse_other_host()
            try:
                with connect(home.socket_path, _STATUS_TIMEOUT) as client:
                    return _describe(home, client.info())
            except ResponseError as error:
                raise _unreachable(home, Answer(text=str(error))) from error
            except RedisError:
                pass
            # It may be in the middle of its start or of its end.
            if time.monotonic() >= deadline:
                raise _unreachable(home, Answer())
            time.sleep(0.01)


def _check_timeout(timeout: float) -> None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ConfigurationError(f"timeout is {timeout!r}: it must be a number of seconds above 0")


@contextmanager
def _home() -> Iterator[Home]:
    """Find the home; turn every error of the file system into one sentence."""
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
    with home.hold_life_lock() as life_fd:
        if life_fd is None:
            return None
        home.pid_file.unlink(missing_ok=True)
        if log_size(home.log_file) > _LOG_LIMIT:
            home.log_file.replace(home.log_file.with_suffix(".log.1"))
        log_start = log_size(home.log_file)
        _spawn(home, life_fd, log_start, deadline)
    logger.info("started the embedded server in %s", home.data_dir)
    return log_start


def _spawn(home: Home, life_fd: int, log_start: int, deadline: float) -> None:
    """Start the server, detached from this process; it keeps the descriptor of its life lock."""
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


def _end(home: Home, pid: int | None, deadline: float) -> None:
    """End the server with a process id (None: the one that lives) by SIGTERM, later by SIGKILL."""
    half = (time.monotonic() + deadline) / 2
    # A server that has just been started has not written its process id yet.
    while pid is None and home.is_alive() and time.monotonic() < deadline:
        pid = home.pid()
        time.sleep(0.01)
    for number, until in ((signal.SIGTERM, half), (signal.SIGKILL, deadline)):
        # The id of a server that crashed stands there until the next one is started.
        if pid is not None and home.is_alive() and home.pid() == pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while time.monotonic() < until:
            # Under another id another process has started the next one.
            if not home.is_alive() or home.pid() not in {pid, None}:
                return
            time.sleep(0.01)
    raise ServerError(
        f"the embedded server in {home.data_dir} (pid {pid or 'unknown'}) cannot be ended"
    )


def _describe(home: Home, info: dict[str, Any]) -> ServerStatus:
    return ServerStatus(
        running=True,
        data_dir=home.data_dir,
        socket_path=home.socket_path,
        url=home.url,
        pid=info["process_id"],
        loading=bool(info["loading"]),
        version=info.get("valkey_version", info["redis_version"]),
        uptime=info["uptime_in_seconds"],
        memory_bytes=info["used_memory"],
        aof_bytes=info.get("aof_current_size"),
        keys=sum(value["keys"] for name, value in info.items() if name.startswith("db")),
        refuses_writes=_why_not_writable(home, info),
    )


def _why_not_writable(home: Home, info: dict[str, Any]) -> str | None:
    if info.get("aof_last_write_status", "ok") != "ok":
        full = "the disk is full" if _is_disk_full(home) else log_tail(home.log_file)
        return f"its append-only file in {home.data_dir} cannot be written: {full}"
    limit = info.get("maxmemory", 0)
    if 0 < limit < info["used_memory"]:
        return f"its memory is above its maxmemory, {limit} bytes"
    return None


def _died(home: Home, log: str) -> ServerError:
    full = "the disk is full; " if _is_disk_full(home) else ""
    return ServerError(
        f"the embedded server in {home.data_dir} ended while it was starting; {full}{log}"
    )


def _is_disk_full(home: Home) -> bool:
    with suppress(OSError):
        return shutil.disk_usage(home.data_dir).free < _NEARLY_FULL
    return False


def _unreachable(home: Home, answer: Answer) -> ServerError:
    """Return the error of a server that lives and does not take commands."""
    who = f"the embedded server in {home.data_dir} (pid {home.pid() or 'unknown'})"
    if answer.busy:
        return ServerError(f"{who} is not ready in time: {answer.text}; try again later")
    if answer.text:
        return ServerError(f"{who} cannot work: {answer.text}; {log_tail(home.log_file)}")
    return ServerError(
        f"{who} runs but does not answer; end it with `bloomlock server stop`, or {WAY_OUT}"
    )
