"""The one server that all processes of a user share: find, start, stop and look at it."""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import filelock
from redis.exceptions import RedisError, ResponseError

from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server import process
from bloomlock.server.home import Home, find_home
from bloomlock.server.probe import (
    Answer,
    ask,
    connect,
    died,
    explained,
    is_disk_full,
    log_tail,
    refuse_other_host,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_PING_TIMEOUT = 1.0
_STATUS_TIMEOUT = 1.0
# A living server that says nothing for this many seconds is taken to hang.
_HANG_TIMEOUT = 5.0


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
    _check_timeout(timeout)
    home = find_home()
    with explained(home):
        if not (home.check() and ask(home.socket_path, min(_PING_TIMEOUT, timeout)).ready):
            _bring_up(home, timeout)
    return home.url


def start(timeout: float = 30.0) -> bool:
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
    home = find_home()
    with explained(home):
        return _bring_up(home, timeout)


def stop(timeout: float = 10.0) -> bool:
    """Stop the embedded server; its data stays. Returns when its process has ended.

    A server that does not react is killed. No acknowledged write is lost by that: the
    append-only file is handed to the system before each reply.

    Args:
        timeout: The longest time to take, in seconds; two thirds of it for a peaceful end.

    Returns:
        True if a server was stopped, False if none was running.

    Raises:
        ServerError: The server refuses, cannot be ended, or runs on another host.
        ConfigurationError: As for `embedded_url`.
    """
    _check_timeout(timeout)
    home = find_home()
    with explained(home):
        home.check()
        if not home.life_lock.is_held():
            return False
        deadline = time.monotonic() + timeout
        with _sole_starter(home, deadline):
            if not home.life_lock.is_held():
                return False
            refuse_other_host(home)
            asked = _ask_to_end(home, min(2.0, timeout / 3))
            if not (asked and home.life_lock.wait_free(deadline - timeout / 3)):
                process.end(home, deadline)
    logger.info("stopped the embedded server in %s", home.data_dir)
    return True


def status() -> ServerStatus:
    """Look at the embedded server; starts and creates nothing. Takes 1-2 s at the most.

    Raises:
        ServerError: A server lives but does not answer, or runs on another host.
        ConfigurationError: BLOOMLOCK_HOME is not an absolute path.
    """
    home = find_home()
    deadline = time.monotonic() + _STATUS_TIMEOUT
    with explained(home):
        while True:
            there = home.check()
            if not home.life_lock.is_held():
                return ServerStatus(
                    running=False,
                    data_dir=home.data_dir,
                    socket_path=home.socket_path,
                    url=home.url,
                )
            refuse_other_host(home)
            info = _info(home) if there else None
            if info is not None:
                return _describe(home, info)
            # It may be in the middle of its start or of its end.
            if time.monotonic() >= deadline:
                raise unreachable(home, Answer())
            time.sleep(0.01)


def _check_timeout(timeout: float) -> None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ConfigurationError(f"timeout is {timeout!r}: it must be a number of seconds above 0")


def _bring_up(home: Home, timeout: float) -> bool:
    """Wait until the server is ready; start it once if none lives. Returns whether it did."""
    home.prepare()
    deadline = time.monotonic() + timeout
    log_start: int | None = None
    heard_at = time.monotonic()
    pause = 0.002
    while True:
        answer = _ask(home, deadline)
        now = time.monotonic()
        if answer.ready:
            return log_start is not None
        if answer.text and not answer.busy:
            raise unreachable(home, answer)
        if answer.busy:
            heard_at = now
        if not home.life_lock.is_held():
            if log_start is not None:
                raise died(home, log_tail(home.log_file, log_start))
            log_start = _start_once(home, deadline)
            heard_at = time.monotonic()
        elif now >= deadline:
            refuse_other_host(home)
            raise unreachable(home, answer)
        elif now - heard_at >= _HANG_TIMEOUT and home.pid() is not None:
            _replace_or_give_up(home, deadline)
            heard_at = time.monotonic()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _ask(home: Home, deadline: float) -> Answer:
    if not home.check():
        return Answer()
    return ask(home.socket_path, max(0.1, min(_PING_TIMEOUT, deadline - time.monotonic())))


def _start_once(home: Home, deadline: float) -> int | None:
    """Start a server unless another process just did; return where its part of the log begins."""
    with _sole_starter(home, deadline), home.life_lock.hold() as fd:
        if fd is None:
            return None
        log_start = process.spawn(home, fd, deadline)
    logger.info("started the embedded server in %s", home.data_dir)
    return log_start


def _replace_or_give_up(home: Home, deadline: float) -> None:
    """End a living server whose socket was removed: no client can reach it."""
    refuse_other_host(home)
    pid = home.pid()
    if home.check():
        raise unreachable(home, Answer())
    with _sole_starter(home, deadline):
        if home.pid() != pid or home.check() or not home.life_lock.is_held():
            return  # another process has done it
        logger.warning("the embedded server in %s lost its socket: restarting it", home.data_dir)
        process.end(home, deadline)


def _ask_to_end(home: Home, timeout: float) -> bool:
    """Send SHUTDOWN; return whether the server may have got it."""
    if not home.check():
        return False
    with connect(home.socket_path, timeout) as client:
        try:
            # NOSAVE is about snapshots; the append-only file is completed in any case. It is also
            # what a server accepts while a script keeps it busy.
            client.shutdown(nosave=True)
        except ResponseError as error:
            raise ServerError(
                f"the embedded server in {home.data_dir} refuses to stop: {error}; "
                f"{log_tail(home.log_file)}"
            ) from error
        except RedisError:
            logger.warning("the embedded server in %s does not answer", home.data_dir)
            return False
    return True


@contextmanager
def _sole_starter(home: Home, deadline: float) -> Iterator[None]:
    lock = filelock.FileLock(home.start_lock, mode=0o600)
    try:
        lock.acquire(timeout=max(0.0, deadline - time.monotonic()), poll_interval=0.01)
    except filelock.Timeout as error:
        raise ServerError(
            f"another process has been starting or stopping the embedded server in "
            f"{home.data_dir} for too long: {home.start_lock} is locked"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _info(home: Home) -> dict[str, Any] | None:
    with connect(home.socket_path, _STATUS_TIMEOUT) as client:
        try:
            info: dict[str, Any] = client.info()
        except ResponseError as error:
            raise unreachable(home, Answer(text=str(error))) from error
        except RedisError:
            return None
    return info


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
        full = "the disk is full" if is_disk_full(home) else log_tail(home.log_file)
        return f"its append-only file in {home.data_dir} cannot be written: {full}"
    limit = info.get("maxmemory", 0)
    if 0 < limit < info["used_memory"]:
        return f"its memory is above its maxmemory, {limit} bytes"
    return None
