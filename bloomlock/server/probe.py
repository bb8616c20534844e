"""How a server is: a PING, its log, and each thing that can be wrong with it as one sentence."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from bloomlock.errors import ServerError
from bloomlock.server.home import WAY_OUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bloomlock.server.home import Home

# "4242:M 20 Nov 2025 20:06:00.123 # " at the start of each log line.
_LOG_PREFIX = re.compile(r"^\d+:\w \d{1,2} \w{3} \d{4} [\d:.]+ [^\w\s] ")
_TAIL_BYTES = 4096
_LINES = 3
_NEARLY_FULL = 1 << 16


@dataclass(frozen=True)
class Answer:
    """What came back on a PING.

    Attributes:
        ready: The server takes commands.
        busy: It is alive and will take commands later (it loads its data or runs a script).
        text: What it said if it is not ready; empty if it said nothing.
    """

    ready: bool = False
    busy: bool = False
    text: str = ""


def connect(socket_path: Path, timeout: float) -> redis.Redis:
    """Return a client that tries everything once and waits `timeout` seconds for each step."""
    return redis.Redis(
        unix_socket_path=str(socket_path),
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=True,
    )


def ask(socket_path: Path, timeout: float) -> Answer:
    """Send one PING and wait at most about `timeout` seconds for what comes back."""
    with connect(socket_path, timeout) as client:
        try:
            client.ping()
        except BusyLoadingError as error:
            return Answer(busy=True, text=str(error))
        except (ResponseError, AuthenticationError) as error:
            return Answer(busy=str(error).startswith("BUSY"), text=str(error))
        except RedisError:
            return Answer()
    return Answer(ready=True)


def log_size(path: Path) -> int:
    """Return the size of a log in bytes, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def log_tail(path: Path, since: int = 0) -> str:
    """Return the last lines a server wrote to its log from byte `since` on, joined to one."""
    try:
        with path.open("rb") as log:
            log.seek(max(since, log_size(path) - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return "it has no log yet"
    except OSError as error:
        return f"its log {path} cannot be read: {error.strerror}"
    return quote_lines(text) or f"it wrote nothing to its log {path}"


def quote_lines(text: str) -> str:
    """Join the last lines of a program's output to part of a sentence; empty if there are none."""
    cleaned = (_LOG_PREFIX.sub("", line).strip() for line in text.splitlines())
    kept = [line for line in cleaned if line][-_LINES:]
    return "its last log lines: " + " | ".join(kept) if kept else ""


def died(home: Home, log: str) -> ServerError:
    """Make the error of a server that ended before it was ready."""
    full = "the disk is full; " if is_disk_full(home) else ""
    return ServerError(
        f"the embedded server in {home.data_dir} ended while it was starting; {full}{log}"
    )


def is_disk_full(home: Home) -> bool:
    """Return whether the disk of the data has hardly any room."""
    with suppress(OSError):
        return shutil.disk_usage(home.data_dir).free < _NEARLY_FULL
    return False


def unreachable(home: Home, answer: Answer) -> ServerError:
    """Make the error of a server that lives and does not take commands."""
    who = f"the embedded server in {home.data_dir} (pid {home.pid() or 'unknown'})"
    if answer.busy:
        return ServerError(f"{who} is not ready in time: {answer.text}; try again later")
    if answer.text:
        return ServerError(f"{who} cannot work: {answer.text}; {log_tail(home.log_file)}")
    return ServerError(
        f"{who} runs but does not answer; end it with `bloomlock server stop`, or {WAY_OUT}"
    )


def refuse_other_host(home: Home) -> None:
    """Refuse data that a server on another machine works on."""
    host = home.life_lock.foreign_host()
    if host is not None:
        raise ServerError(
            f"the data directory {home.data_dir} is in use by the embedded server of the host "
            f"{host}; {WAY_OUT}"
        )


@contextmanager
def explained(home: Home) -> Iterator[None]:
    """Turn every error of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        raise ServerError(
            f"the embedded server's directory {home.data_dir} cannot be used: {error.strerror} "
            f"({error.filename or home.life_lock.path}); {log_tail(home.log_file)}; {WAY_OUT}"
        ) from error
