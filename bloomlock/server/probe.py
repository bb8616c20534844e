"""Asking a server how it is, and reading what it left in its log."""

from __future__ import annotations

import re
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

if TYPE_CHECKING:
    from pathlib import Path

# "4242:M 20 Nov 2025 20:06:00.123 # " at the start of each log line.
_LOG_PREFIX = re.compile(r"^\d+:\w \d{1,2} \w{3} \d{4} [\d:.]+ [^\w\s] ")
_TAIL_BYTES = 4096


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


def log_tail(path: Path, since: int = 0, lines: int = 3) -> str:
    """Return the last lines a server wrote to its log, joined to one.

    Args:
        path: The log.
        since: Do not look before this byte.
        lines: How many lines at most.
    """
    try:
        with path.open("rb") as log:
            log.seek(max(since, log_size(path) - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return "it has no log yet"
    except OSError as error:
        return f"its log {path} cannot be read: {error.strerror}"
    return quote_lines(text, lines) or f"it wrote nothing to its log {path}"


def quote_lines(text: str, lines: int = 3) -> str:
    """Join the last lines of a program's output to part of a sentence; empty if there are none."""
    cleaned = (_LOG_PREFIX.sub("", line).strip() for line in text.splitlines())
    kept = [line for line in cleaned if line][-lines:]
    return "its last log lines: " + " | ".join(kept) if kept else ""
