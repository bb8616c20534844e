"""Ways to a server: one that is longer, and one that loses replies."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import tempfile
import threading
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import hiredis

from .place import connect, open_socket, parse_url
from .processes import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

CHUNK = 1 << 18
PINGS = 200
TRIES = 3
HANDSHAKE = {b"HELLO", b"AUTH", b"CLIENT", b"SELECT"}
"""Never lost: what a client sends when it connects says nothing about items."""
_INCOMPLETE = object()


@contextmanager
def delayed(url: str, round_trip_ms: float) -> Iterator[str]:
    """Provide a URL from which a round trip to the server takes so long.

    What is read is written some milliseconds later, without holding back what comes after it: a
    longer wire, not a thinner one. The proxy takes some time itself, and sleeps longer than it
    should, so the delay is found by trying.
    """
    if not round_trip_ms:
        yield url
        return
    delay_ms = 0.0
    for _ in range(TRIES):
        with delaying(url, delay_ms) as through:
            delay_ms = max(0.0, delay_ms + (round_trip_ms - measured_ms(through)) / 2)
    with delaying(url, delay_ms) as through:
        yield through


@contextmanager
def delaying(url: str, delay_ms: float) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        path = f"{folder}/proxy.sock"
        with Worker(_delay, url, path, delay_ms / 1e3) as proxy:
            proxy.hear()
            yield f"unix://{path}"


def measured_ms(url: str) -> float:
    times = []
    with connect(url) as client:
        for _ in range(PINGS):
            start = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - start)
    return median(times) * 1e3


def _delay(pipe: Connection, url: str, path: str, delay: float) -> None:
    """Serve until this process is ended."""

    def serve(client: socket.socket) -> None:
        server = open_socket(url)
        threading.Thread(target=_carry, args=(client, server, delay), daemon=True).start()
        _carry(server, client, delay)

    _listen(path, serve)
    pipe.send("ready")
    pipe.recv()


def _carry(source: socket.socket, target: socket.socket, delay: float) -> None:
    on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def write() -> None:
        data = b"unwritten"
        with contextlib.suppress(OSError):
            while data:
                due, data = on_the_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    threading.Thread(target=write, daemon=True).start()
    data = b"unread"
    while data:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        on_the_way.put((time.monotonic() + delay, data))


def _listen(path: str, serve: Callable[[socket.socket], None]) -> socket.socket:
    """Serve each client that connects in a thread of its own; return what listens."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


class LossProxy:
    """A proxy that loses replies: it swallows some and closes the connection, as a network would.

    It looks at whole exchanges: all commands the client has sent, then all replies to them. Every
    second loss happens before the commands reach the server, the others after they were applied.
    The client cannot know which. It is threads of this process, and a context manager.
    """

    def __init__(self, url: str, share: float = 0.0) -> None:
        self.losing = False  # from when replies are lost
        self.taken: list[tuple[bytes, int]] = []  # exchanges, as bytes and number of replies
        self.lost = {"before": 0, "after": 0}
        self._server = url
        self._share = share
        self._random = random.Random(0)
        self._folder = tempfile.TemporaryDirectory(prefix="bloomlock-")
        self._path = f"{self._folder.name}/proxy.sock"

    @property
    def url(self) -> str:
        server = parse_url(self._server)
        kept = {name: server[name] for name in server if name in {"db", "username", "password"}}
        return f"unix://{self._path}?{urlencode(kept)}"

    def __enter__(self) -> Self:
        self._listener = _listen(self._path, self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._folder.cleanup()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), open_socket(self._server) as server:
            while True:
                data, commands = exchange(client, 0)
                self.taken.append((data, len(commands)))
                names = {command[0].upper() for command in commands}
                loss = ""
                if self.losing and not names <= HANDSHAKE and self._random.random() < self._share:
                    loss = "before" if self.lost["before"] <= self.lost["after"] else "after"
                    self.lost[loss] += 1
                if loss == "before":
                    return
                server.sendall(data)
                replies, _ = exchange(server, len(commands))
                if loss == "after":
                    return
                client.sendall(replies)


def exchange(peer: socket.socket, count: int) -> tuple[bytes, list[Any]]:
    """Read whole commands or replies: so many, or (0) until none is incomplete."""
    reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
    found: list[Any] = []
    data = b""
    while not found or (len(found) < count if count else reader.has_data()):
        received = peer.recv(1 << 16)
        if not received:
            raise ConnectionResetError
        data += received
        reader.feed(received)
        while (one := reader.gets()) is not _INCOMPLETE:
            found.append(one)
    return data, found
