"""The site that is crawled: a URL, a folder served on a loopback port, or the pydoc pages."""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from bloomlock.errors import ConfigurationError
from scrapy_ext.crawl.render import pydoc_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN_HEADER = "X-Bloomlock-Token"  # noqa: S105 - the header's name, not a secret


@dataclass(frozen=True, slots=True)
class Target:
    """A site to crawl.

    Attributes:
        start: Address of its first page.
        is_remote: Whether another server has it: then robots.txt counts, and workers slow down
            with it.
        capacity: Distinct links to reckon with.
        max_pages: Where to stop by default; None: at the end.
        token: What the job's own server wants to see.
    """

    title: str
    start: str
    is_remote: bool = False
    capacity: int = 100_000
    max_pages: int | None = None
    token: str = ""


@contextmanager
def open_target(source: str | None, on_render: Callable[[int, int], None]) -> Iterator[Target]:
    """Serve a folder of HTML, the pydoc pages (None), or take the URL of a site elsewhere."""
    parts = urlsplit(source or "")
    if source is not None and parts.scheme in {"http", "https"}:
        if not parts.hostname:
            raise ConfigurationError(f"SOURCE is {source!r}; a URL needs a host.")
        yield Target(source, source, is_remote=True, max_pages=10_000)
        return
    folder = pydoc_site(on_render) if source is None else Path(source)
    if not folder.is_dir():
        raise ConfigurationError(
            f"SOURCE is {source!r}; allowed are an http or https URL and an existing folder."
        )
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    title = "the standard library's documentation" if source is None else str(folder)
    # A loopback port is open to every user of the machine, the folder may not be.
    token = secrets.token_urlsafe(16)
    handler = partial(_Handler, token=token, directory=str(folder))
    # The port follows from the path of the folder, so that a crawl that goes on finds its pages;
    # where it is taken, any free one will do.
    usual = 20_000 + zlib.crc32(os.fsencode(folder.resolve())) % 10_000
    try:
        server = LoopbackServer(("127.0.0.1", usual), handler)
    except OSError:
        server = LoopbackServer(("127.0.0.1", 0), handler)
    with served(server):
        yield Target(title, server.url, capacity=max(1000, 2 * files), token=token)


class LoopbackServer(ThreadingHTTPServer):
    """Serves pages to this machine."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hangs up is no news here


Server = TypeVar("Server", bound=LoopbackServer)


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """Let a server answer in a thread."""
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    # Header and body are two writes; Nagle's algorithm would hold the second back for 40 ms.
    disable_nagle_algorithm = True

    def __init__(self, *args: Any, token: str, directory: str) -> None:
        self._token = token
        super().__init__(*args, directory=directory)

    def send_head(self) -> Any:
        if hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return super().send_head()
        self.send_error(HTTPStatus.FORBIDDEN)
        return None

    # A002: the parameter's name is that of the base class.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
