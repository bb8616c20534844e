"""A proxy that loses replies: it swallows a reply and closes the connection, as a network would.

It stands on a unix socket before a server and looks at whole exchanges: all commands the client
has sent, then all replies to them. Every second loss happens before the commands reach the server,
the others after they were applied. The client cannot know which.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import threading
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import hiredis

from .place import open_socket, parse_url

HANDSHAKE = {b"HELLO", b"AUTH", b"CLIENT", b"SELECT"}
"""Never lost: what a client sends when it connects says nothing about items."""

_INCOMPLETE = object()
Exchange = tuple[bytes, int]


class LossProxy:
    """A proxy in threads of this process; to be used as a context manager.

    Attributes:
        losing: Whether replies are lost; False at first.
        taken: Where exchanges are taken down, as bytes and number of replies; None: nowhere.
        lost_before: Exchanges lost that the server never saw.
        lost_after: Exchanges lost that the server carried out.
    """

    def __init__(self, url: str, share: float, seed: int = 0) -> None:
        self.losing = False
        self.taken: list[Exchange] | None = None
        self.lost_before = 0
        self.lost_after = 0
        self._url = url
        self._every = round(1 / share)
        self._random = random.Random(seed)
        self._seen = 0
        self._next = 0
        self._directory = tempfile.TemporaryDirectory(prefix="bloomlock-")
        self._path = Path(self._directory.name) / "proxy.sock"
        self._listener = socket.socket(socket.AF_UNIX)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        kept = ("db", "username", "password")
        server = parse_url(self._url)
        query = urlencode({name: server[name] for name in kept if name in server})
        return f"unix://{self._path}?{query}"

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._directory.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), open_socket(self._url) as server:
            while exchange := _read_commands(client):
                data, commands = exchange
                if self.taken is not None:
                    self.taken.append((data, len(commands)))
                loss = self._choose(commands)
                if loss == "before":
                    return
                server.sendall(data)
                replies = _read_replies(server, len(commands))
                if loss == "after":
                    return
                client.sendall(replies)

    def _choose(self, commands: list[bytes]) -> str:
        """Decide the fate of an exchange from the names of its commands."""
        if not self.losing or HANDSHAKE.issuperset(commands):
            return ""
        place = self._seen % self._every
        self._seen += 1
        if place == 0:
            self._next = self._random.randrange(self._every)
        if place != self._next:
            return ""
        if self.lost_before <= self.lost_after:
            self.lost_before += 1
            return "before"
        self.lost_after += 1
        return "after"


def _read_commands(client: socket.socket) -> tuple[bytes, list[bytes]] | None:
    """Return the bytes and the names of whole commands; None at the end."""
    reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
    data = b""
    names = []
    while received := client.recv(65536):
        data += received
        reader.feed(received)
        while (command := reader.gets()) is not _INCOMPLETE:
            names.append(command[0].upper())
        if not reader.has_data():
            return data, names
    return None


def _read_replies(server: socket.socket, count: int) -> bytes:
    """Return the bytes of `count` replies."""
    reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
    data = b""
    while count:
        received = server.recv(65536)
        if not received:
            raise ConnectionResetError
        data += received
        reader.feed(received)
        while count and reader.gets() is not _INCOMPLETE:
            count -= 1
    return data
