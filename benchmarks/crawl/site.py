"""A site of numbered pages that are made when they are asked for, and its log.

Page n is the first to link to the pages from n * NEW + 1 to n * NEW + NEW. Its other links are
repeats, most of them of the first pages, as the links of a menu are. A crawl that takes the pages
in their order meets that share of new links on every page.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

SKEW = 3
"""The greater, the more of the repeats lead to the first pages."""
FILLER = "<p>The page has some text, too, which the parser has to read.</p>" * 20


@dataclass(frozen=True, slots=True)
class Shape:
    links: int  # of a page
    new: int  # of them to pages that no earlier page links to
    pages: int | None = None  # of the site; None: there is no end
    seconds: float = 0.0  # for which an answer is held back


class Site:
    """The site on a loopback port, with the paths that were asked for."""

    def __init__(self, shape: Shape) -> None:
        self.served: list[str] = []
        self.on_request: Callable[[int], None] = lambda _number: None
        self.shape = shape
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.site = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def start(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def note(self, path: str) -> None:
        with self._lock:
            self.served.append(path)
            number = len(self.served)
        self.on_request(number)

    def forget(self) -> None:
        with self._lock:
            self.served.clear()


@lru_cache(10_000)
def page(number: int, shape: Shape) -> bytes:
    first = number * shape.new + 1
    chance = random.Random(number)
    repeats = [int(first * chance.random() ** SKEW) for _ in range(max(0, shape.links - shape.new))]
    targets = [*range(first, first + shape.new), *repeats]
    chance.shuffle(targets)
    end = shape.pages
    links = (f'<a href="/{each}">{each}</a>' for each in targets if end is None or each < end)
    return f"<html><body>{FILLER}{' '.join(links)}</body></html>".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    site: Site

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes; Nagle's algorithm would hold the second back.
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        site = self.server.site
        site.note(self.path)
        if site.shape.seconds:
            time.sleep(site.shape.seconds)
        body = page(int(self.path[1:]), site.shape)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # A002: the parameter's name is that of the base class.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
