"""A way to a server that is longer, or loses replies."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from contextlib import contextmanager
from socketserver import ThreadingTCPServer
from statistics import median
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import hiredis

from .place import connect, open_socket, parse_url
from .processes import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

PINGS = 200
TRIES = 3
HANDSHAKE = {b"HELLO", b"AUTH", b"CLIENT", b"SELECT"}
"""Never lost: what a client sends when it connects says nothing about items."""
_INCOMPLETE = object()


@contextmanager
def delayed(url: str, round_trip_ms: float) -> Iterator[str]:
    """Provide a URL from which a round trip to the server takes so long.

    The proxy takes some time itself, and sleeps longer than it should, so its delay is found by
    trying. It is a process of its own: threads of this one serve the pages of a crawl.
    """
    if not round_trip_ms:
        yield url
        return
    with Worker(_delay, url) as proxy:
        through, delay = proxy.hear(), 0.0
        for _ in range(TRIES):
            delay = max(0.0, delay + round_trip_ms / 1e3 - round_trip(through))
            proxy.pipe.send(delay)
        yield through


def _delay(pipe: Connection, url: str) -> None:
    with Proxy(url) as proxy:
        pipe.send(proxy.url)
        while True:
            proxy.delay = pipe.recv()


def round_trip(url: str) -> float:
    times = []
    with connect(url) as client:
        for _ in range(PINGS):
            start = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - start)
    return median(times)


class Proxy(ThreadingTCPServer):
    """A proxy on a loopback port, in threads of this process; a context manager.

    It looks at whole exchanges: all commands the client has sent, then all replies to them. Of some
    it swallows the replies and closes the connection, as a network would. Every second loss happens
    before the commands reach the server, the others after they were applied. The client cannot know
    which. Messages that come unasked are not carried.

    Attributes:
        delay: Seconds that each exchange takes longer.
        losing: Whether replies are lost; False at first.
        taken: Exchanges, as bytes and number of replies.
        lost: Exchanges lost before the server saw them, and after it carried them out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, url: str, share: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), self._serve)
        self.delay = 0.0
        self.losing = False
        self.taken: list[tuple[bytes, int]] = []
        self.lost = {"before": 0, "after": 0}
        self._server = url
        self._share = share
        self._random = random.Random(0)

    @property
    def url(self) -> str:
        server = parse_url(self._server)
        kept = {name: server[name] for name in server if name in {"db", "username", "password"}}
        return f"redis://127.0.0.1:{self.server_address[1]}?{urlencode(kept)}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def _serve(self, client: socket.socket, *_: Any) -> Any:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), open_socket(self._server) as server:
            while True:
                data, commands = exchange(client, 0)
                self.taken.append((data, len(commands)))
                time.sleep(self.delay)
                names = {command[0].upper() for command in commands}
                loss = ""
                if self.losing and not names <= HANDSHAKE and self._random.random() < self._share:
                    loss = "before" if self.lost["before"] <= self.lost["after"] else "after"
                    self.lost[loss] += 1
                if loss == "before":
                    return
                server.sendall(data)
                replies = exchange(server, len(commands))[0]
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
