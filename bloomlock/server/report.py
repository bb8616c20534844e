"""Looking at the embedded server without touching it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from bloomlock.server import life
from bloomlock.server.paths import Home, find_home
from bloomlock.server.probe import Answer, connect, log_tail
from bloomlock.server.trouble import explained, is_disk_full, refuse_other_host, unreachable

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 1.0


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


def status() -> ServerStatus:
    """Look at the embedded server; starts and creates nothing. Takes 1-2 s at the most.

    Raises:
        ServerError: A server lives but does not answer, or runs on another host.
        ConfigurationError: BLOOMLOCK_HOME is not an absolute path.
    """
    home = find_home()
    deadline = time.monotonic() + _TIMEOUT
    with explained(home):
        while True:
            there = home.check()
            if not life.is_held(home.life_file):
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


def _info(home: Home) -> dict[str, Any] | None:
    with connect(home.socket_path, _TIMEOUT) as client:
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
