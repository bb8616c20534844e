"""A proxy on a unix socket that loses replies on demand, command by command."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import tempfile
import threading
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict = Literal["pass", "before", "after"]
"""Deliver; close before the command reaches the server; close after it was carried out."""


class LossProxy:
    """Sits between clients and a server and asks `judge(name, number)` about every command.

    Args:
        url: unix:// URL of the server.
        judge: Gets the upper-case name of the command and how many came before it.
    """

    def __init__(self, url: str, judge: Callable[[str, int], Verdict]) -> None:
        self._server = urlsplit(url).path
        self.judge = judge
        self.seen: list[str] = []
        self.lost = 0
        self._directory = tempfile.mkdtemp(prefix="loss-")
        self._path = os.path.join(self._directory, "s")  # noqa: PTH118 - a socket's path is short
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: list[socket.socket] = [self._listener]

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def __enter__(self) -> Self:
        self._listener.bind(self._path)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._open:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        with near, far, contextlib.suppress(OSError):
            far.connect(self._server)
            # Read without bound, as a server does: a client may send a whole batch before it reads.
            arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            threading.Thread(target=_pump, args=(near, arrived), daemon=True).start()
            commands = hiredis.Reader()
            while data := arrived.get():
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    if not self._relay(near, far, command):
                        # Closing alone would not wake the pump, nor reach the client.
                        near.shutdown(socket.SHUT_RDWR)
                        return

    def _relay(self, near: socket.socket, far: socket.socket, command: list[bytes]) -> bool:
        name = command[0].decode().upper()
        with self._lock:
            verdict = self.judge(name, len(self.seen))
            self.seen.append(name)
            self.lost += verdict != "pass"
        if verdict == "before":
            return False
        far.sendall(hiredis.pack_command(tuple(command)))
        raw = b""
        replies = hiredis.Reader()
        while replies.gets() is False:
            data = far.recv(65536)
            if not data:
                return False
            replies.feed(data)
            raw += data
        if verdict == "after":
            return False
        near.sendall(raw)
        return True


def _pump(source: socket.socket, arrived: queue.SimpleQueue[bytes]) -> None:
    data = b"more"
    while data:
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        arrived.put(data)


HANDSHAKE = {"HELLO", "CLIENT", "PING", "SELECT", "AUTH", "INFO"}
