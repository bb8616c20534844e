"""A site of numbered pages that are made when they are fetched, and its log.

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


class Site(ThreadingHTTPServer):
    """The site on a loopback port, with the paths that were fetched; a context manager."""

    address = "127.0.0.1"
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, shape: Shape) -> None:
        super().__init__((self.address, 0), _Handler)
        self.start = f"http://127.0.0.1:{self.server_port}/0"
        self.served: list[str] = []
        self.on_request: Callable[[int], None] = lambda _number: None
        self.shape = shape
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def body(self, path: str, host: str) -> bytes:
        """Return the page at a path; `host` is the header."""
        del host
        return page(int(path[1:]), self.shape)


class Hosts(Site):
    """Pages on several loopback hosts, to all of which page 0 links.

    `times` has when each host was asked for a page, in order.
    """

    address = "0.0.0.0"  # noqa: S104 - 127.0.0.2 and those after it are hosts of this machine only

    def __init__(self, hosts: int, pages: int) -> None:
        super().__init__(Shape(hosts * pages, hosts * pages))
        port = self.server_port
        places = (f"127.0.0.{1 + one % hosts}:{port}/{one + 1}" for one in range(hosts * pages))
        self._first = "".join(f'<a href="http://{place}">page</a>' for place in places).encode()
        self.times: dict[str, list[float]] = {}

    def body(self, path: str, host: str) -> bytes:
        if path == "/0":
            return self._first
        with self.lock:
            self.times.setdefault(host, []).append(time.perf_counter())
        return b"<html></html>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes; Nagle's algorithm would hold the second back.
    disable_nagle_algorithm = True
    server: Site

    def do_GET(self) -> None:
        site = self.server
        with site.lock:
            site.served.append(self.path)
            number = len(site.served)
        site.on_request(number)
        time.sleep(site.shape.seconds)
        body = site.body(self.path, self.headers["Host"])
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # A002: the parameter's name is that of the base class.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
