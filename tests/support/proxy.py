"""A proxy on a unix socket that delays, holds or cuts connections, command by command."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import tempfile
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict = Literal["pass", "before", "after"] | bytes
"""Deliver; cut before the command reaches the server; cut after it was carried out; answer this
in place of the server, which never gets the command."""

HANDSHAKE = {"HELLO", "CLIENT", "PING", "SELECT", "AUTH", "INFO"}
PUSH = "push"
"""Under this name a proxy with `pushes` asks about what the server sends without a request."""
LINGER = 1.0
"""Seconds for the reply to a client that has gone, so that its last command is carried out."""


def deliver(_name: str, _number: int) -> Verdict:
    return "pass"


class Proxy:
    """Stands between clients and a server and asks `judge` about every command.

    A command is sent when the one before it on its connection was answered. What the server sends
    without a request passes at any time.

    Args:
        url: unix:// URL of the server.
        judge: Gets the upper-case name of the command and how many came before it. It runs in the
            thread of the command's connection, and may wait: that holds the command.
        handshake: Whether the commands of `HANDSHAKE` are judged and counted too.
        pushes: Whether the judge is asked about `PUSH` too.

    Attributes:
        seen: The names of the judged commands.
        cuts: How many connections were cut, by verdict.
        packets: How often a client sent something; what goes out in one piece counts once.
        answers: How many commands were answered.
        under_way: How many commands are neither answered nor cut.
        command: The one that was judged last, whole.
    """

    def __init__(
        self,
        url: str,
        judge: Callable[[str, int], Verdict] = deliver,
        *,
        handshake: bool = True,
        pushes: bool = False,
    ) -> None:
        self.judge = judge
        self.seen: list[str] = []
        self.cuts = {"before": 0, "after": 0}
        self.packets = 0
        self.answers = 0
        self.under_way = 0
        self.command: list[bytes] = []
        self.lock = threading.Lock()
        self.server = urlsplit(url).path
        self._not_judged = set() if handshake else HANDSHAKE
        self._pushes = pushes
        self._directory = tempfile.mkdtemp(prefix="proxy-")
        self._path = os.path.join(self._directory, "s")  # noqa: PTH118 - a socket's path is short
        self._listener = socket.socket(socket.AF_UNIX)
        self._connections: list[_Connection] = []

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    @property
    def lost(self) -> int:
        return sum(self.cuts.values())

    def client(self, retries: int = 0) -> redis.Redis:
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), retries))

    def cut(self, count: int) -> None:
        """Cut the connections of the next commands, before they arrive."""
        end = len(self.seen) + count
        self.judge = lambda _name, number: "before" if number < end else "pass"

    def deafen(self, at: int = 0) -> None:
        """Lose the reply of the next command, or of one after it."""
        only = len(self.seen) + at
        self.judge = lambda _name, number: "after" if number == only else "pass"

    def __enter__(self) -> Self:
        self._listener.bind(self._path)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._listener.close()
        for connection in self._connections:
            connection.end()
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                connection = _Connection(self, near)
                self._connections.append(connection)
                threading.Thread(target=connection.serve, daemon=True).start()

    def judged(self, name: str) -> Verdict:
        if name in self._not_judged or (name == PUSH and not self._pushes):
            return "pass"
        with self.lock:
            number = len(self.seen)
            self.seen.append(name)
        verdict = self.judge(name, number)
        if isinstance(verdict, str) and verdict != "pass":
            with self.lock:
                self.cuts[verdict] += 1
        return verdict


class _Connection:
    """Two threads: one reads what the client sends, without bound, as a server does."""

    def __init__(self, proxy: Proxy, near: socket.socket) -> None:
        self._proxy = proxy
        self._near = near
        self._far = socket.socket(socket.AF_UNIX)
        self._bell, self._rung = socket.socketpair()
        self._arrived: deque[bytes] = deque()
        self._gone = False  # its last byte was read

    def serve(self) -> None:
        with self._near, self._far, self._bell, self._rung, contextlib.suppress(OSError):
            try:
                self._far.connect(self._proxy.server)
                threading.Thread(target=self._read, daemon=True).start()
                self._carry()
            finally:
                self.end()

    def end(self) -> None:
        # Closing alone wakes no thread that waits for a socket.
        for end in (self._near, self._far, self._bell):
            _shut(end)

    def _read(self) -> None:
        data = b"more"
        with contextlib.suppress(OSError):
            while data:
                try:
                    data = self._near.recv(65536)
                except OSError:
                    data = b""
                self._gone = not data
                self._arrived.append(data)
                self._bell.send(b"!")

    def _carry(self) -> None:
        commands, piece = hiredis.Reader(), b""
        while True:
            if self._rung not in select.select([self._rung, self._far], [], [])[0]:
                data = self._far.recv(65536)
                if not data or self._proxy.judged(PUSH) != "pass":
                    return
                self._near.sendall(data)
                continue
            if not self._rung.recv(1) or not (data := self._arrived.popleft()):
                return
            # A large write may arrive in two pieces.
            piece += data
            if _is_whole(piece):
                self._proxy.packets += 1
                piece = b""
            commands.feed(data)
            while (command := commands.gets()) is not False:
                if not self._exchange(command):
                    return

    def _exchange(self, command: list[bytes]) -> bool:
        proxy = self._proxy
        with proxy.lock:
            proxy.under_way += 1
        try:
            proxy.command = command
            verdict = proxy.judged(command[0].decode().upper())
            if verdict == "before":
                return False
            if isinstance(verdict, bytes):
                self._near.sendall(verdict)
                return True
            self._far.sendall(hiredis.pack_command(tuple(command)))
            reply = self._reply()
            if verdict == "after" or not reply:
                return False
            proxy.answers += 1
            # What a client that has gone sent before is carried out all the same.
            with contextlib.suppress(OSError):
                self._near.sendall(reply)
            return True
        finally:
            with proxy.lock:
                proxy.under_way -= 1

    def _reply(self) -> bytes:
        raw = b""
        replies = hiredis.Reader()
        while replies.gets() is False:
            while not select.select([self._far], [], [], LINGER)[0]:
                if self._gone:
                    return b""
            data = self._far.recv(65536)
            if not data:
                return b""
            replies.feed(data)
            raw += data
        return raw


def _is_whole(commands: bytes) -> bool:
    """Return whether no command is cut off: then what follows them is read as it is."""
    reader, last = hiredis.Reader(), None
    reader.feed(commands + b"+end\r\n")
    with contextlib.suppress(hiredis.ProtocolError):
        while (reply := reader.gets()) is not False:
            last = reply
    return last == b"end"


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
