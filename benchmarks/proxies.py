"""Ways to a server: one that is longer, and one that loses replies."""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import hiredis

from .place import connect, open_socket, parse_url
from .team import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

CHUNK = 1 << 18
ON_THE_WAY = 4096
"""Chunks in one direction at a time: more than ever are, and an end to memory."""
PINGS = 200
TRIES = 3
HANDSHAKE = {b"HELLO", b"AUTH", b"CLIENT", b"SELECT"}
"""Never lost: what a client sends when it connects says nothing about items."""
_INCOMPLETE = object()


@contextmanager
def delayed(url: str, round_trip_ms: float) -> Iterator[str]:
    """Provide a URL from which a round trip to the server takes so long.

    What is read is written some milliseconds later, in both directions and without holding back
    what comes after it: a longer wire, not a thinner one. The proxy is a process of its own. It
    takes a good tenth of a millisecond, and sleeps longer than it should, so the delay is found by
    trying.
    """
    if not round_trip_ms:
        yield url
        return
    delay_ms = 0.0
    for _ in range(TRIES):
        with _delaying(url, delay_ms) as through:
            delay_ms = max(0.0, delay_ms + (round_trip_ms - _round_trip_ms(through)) / 2)
    with _delaying(url, delay_ms) as through:
        yield through


@contextmanager
def _delaying(url: str, delay_ms: float) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        path = str(Path(folder) / "proxy.sock")
        with Worker("the delaying proxy", _delay, url, path, delay_ms) as proxy:
            proxy.hear()
            yield f"unix://{path}"


def _round_trip_ms(url: str) -> float:
    times = []
    with connect(url) as client:
        for _ in range(PINGS):
            start = perf_counter()
            client.ping()
            times.append(perf_counter() - start)
    return median(times) * 1e3


def _delay(pipe: Connection, url: str, path: str, delay_ms: float) -> None:
    """Serve until the other end of the pipe is closed."""
    # Not epoll, which the event loop asks in whole milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    serving = loop.create_task(_serve(pipe, url, path, delay_ms / 1e3))
    loop.add_reader(pipe.fileno(), serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)


async def _serve(pipe: Connection, url: str, path: str, delay: float) -> None:
    options = parse_url(url)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "unix_socket_path" in options:
            opened = asyncio.open_unix_connection(options["unix_socket_path"], limit=CHUNK)
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            opened = asyncio.open_connection(host, port, limit=CHUNK)
        there, back = await opened
        await asyncio.gather(_carry(reader, back, delay), _carry(there, writer, delay))

    server = await asyncio.start_unix_server(accept, path, limit=CHUNK)
    pipe.send("ready")
    await server.serve_forever()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    loop = asyncio.get_running_loop()
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(ON_THE_WAY)

    async def write() -> None:
        while True:
            due, data = await on_the_way.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                return
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    data = b"unread"
    while data:
        try:
            data = await reader.read(CHUNK)
        except OSError:
            data = b""
        await on_the_way.put((loop.time() + delay, data))
    with contextlib.suppress(OSError):
        await writing
    writer.close()


class LossProxy:
    """A proxy that loses replies: it swallows one and closes the connection, as a network would.

    It looks at whole exchanges: all commands the client has sent, then all replies to them. Every
    second loss happens before the commands reach the server, the others after they were applied.
    The client cannot know which. It is threads of this process, and a context manager.

    Attributes:
        losing: Whether replies are lost; False at first.
        taken: Where exchanges are taken down, as bytes and number of replies; None: nowhere.
        lost: Exchanges lost before the server saw them, and after it carried them out.
    """

    def __init__(self, url: str, share: float, seed: int = 0) -> None:
        self.losing = False
        self.taken: list[tuple[bytes, int]] | None = None
        self.lost = {"before": 0, "after": 0}
        self._url = url
        self._every = round(1 / share)
        self._random = random.Random(seed)
        self._seen = self._next = 0
        self._directory = tempfile.TemporaryDirectory(prefix="bloomlock-")
        self._path = Path(self._directory.name) / "proxy.sock"
        self._listener = socket.socket(socket.AF_UNIX)

    @property
    def url(self) -> str:
        server = parse_url(self._url)
        kept = {name: server[name] for name in server if name in {"db", "username", "password"}}
        return f"unix://{self._path}?{urlencode(kept)}"

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
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), open_socket(self._url) as server:
            while True:
                data, commands = _exchange(client, 0)
                if self.taken is not None:
                    self.taken.append((data, len(commands)))
                names = {command[0].upper() for command in commands}
                loss = self._choose() if self.losing and not HANDSHAKE.issuperset(names) else ""
                if loss == "before":
                    return
                server.sendall(data)
                replies, _ = _exchange(server, len(commands))
                if loss == "after":
                    return
                client.sendall(replies)

    def _choose(self) -> str:
        """Decide the fate of an exchange: of so many in a row one is lost."""
        place = self._seen % self._every
        self._seen += 1
        if place == 0:
            self._next = self._random.randrange(self._every)
        if place != self._next:
            return ""
        loss = "before" if self.lost["before"] <= self.lost["after"] else "after"
        self.lost[loss] += 1
        return loss


def _exchange(peer: socket.socket, count: int) -> tuple[bytes, list[Any]]:
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
