"""The site that is crawled: a URL, a folder served on a loopback port, or pages about Python."""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import zlib
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from bloomlock.errors import ConfigurationError
from scrapy_ext.crawl.pydoc_pages import pydoc_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN_HEADER = "X-Bloomlock-Token"  # noqa: S105 - the header's name, not a secret


class Target(NamedTuple):
    """A site to crawl.

    `is_remote`: another server has it, so robots.txt counts, and workers slow down with it. `token`
    is what the server of a folder wants to see.
    """

    title: str
    start: str
    is_remote: bool = False
    token: str = ""


@contextmanager
def open_target(source: str | None, show: Callable[[str], object]) -> Iterator[Target]:
    """Serve a folder of HTML, pages about Python (None), or take the URL of a site elsewhere."""
    parts = urlsplit(source or "")
    if source is not None and parts.scheme in {"http", "https"} and parts.hostname:
        yield Target(source, source, is_remote=True)
        return
    folder = pydoc_pages(show) if source is None else Path(source)
    if not folder.is_dir():
        raise ConfigurationError(
            f"SOURCE is {source!r}; allowed are an http or https URL and an existing folder."
        )
    # A loopback port is open to every user of the machine, the folder may not be.
    token = secrets.token_urlsafe(16)
    # The port follows from the path of the folder, so that a crawl that goes on finds its pages.
    port = 20_000 + zlib.crc32(os.fsencode(folder.resolve())) % 10_000
    with served(partial(_Folder, token=token, directory=str(folder)), port) as url:
        yield Target(
            "the documentation of Python" if source is None else str(folder), url, token=token
        )


class _Server(ThreadingHTTPServer):
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hangs up is no news here


@contextmanager
def served(handler: Any, port: int = 0) -> Iterator[str]:
    """Serve this machine from a port, or any free one, in a thread; yields the address."""
    try:
        server = _Server(("127.0.0.1", port), handler)
    except OSError:
        server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class Handler(SimpleHTTPRequestHandler):
    """Answers without a line for each request."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    # Header and body are two writes; Nagle's algorithm would hold the second back for 40 ms.
    disable_nagle_algorithm = True

    # A002: the parameter's name is that of the base class.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _Folder(Handler):
    def __init__(self, *args: Any, token: str, directory: str) -> None:
        self._token = token
        super().__init__(*args, directory=directory)

    def send_head(self) -> Any:
        if hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return super().send_head()
        self.send_error(HTTPStatus.FORBIDDEN)
        return None
