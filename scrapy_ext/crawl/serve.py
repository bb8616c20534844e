"""A folder of HTML on a loopback port, for the length of a `with` block."""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import zlib
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_HEADER = "X-Bloomlock-Token"  # noqa: S105 - the header's name, not a secret


class FolderServer:
    """Serves the files of a folder on 127.0.0.1 to whoever knows the token.

    A loopback port is open to every user of the machine, the folder may not be: a request
    without the token is answered 403.
    """

    def __init__(self, folder: Path) -> None:
        """Take a port; requests are answered from `__enter__` on.

        The port follows from the folder's path, so that a folder keeps its address and a named
        filter knows its pages again; where it is taken, any free one will do.

        Args:
            folder: An existing folder. Its `index.html`, or else its listing, is the start page.
        """
        self.token = secrets.token_urlsafe(16)
        handler = partial(_Handler, token=self.token, directory=str(folder))
        try:
            self._server = _Server(("127.0.0.1", _usual_port(folder)), handler)
        except OSError:
            self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        """Address of the start page."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        """Start answering."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop answering and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def _usual_port(folder: Path) -> int:
    """Return a port outside of the range systems take outgoing ports from."""
    return 20_000 + zlib.crc32(os.fsencode(folder.resolve())) % 10_000


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up is no news here."""


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    # Header and body are two writes; Nagle's algorithm would hold the second back for 40 ms.
    disable_nagle_algorithm = True

    def __init__(self, *args: Any, token: str, directory: str) -> None:
        self._token = token
        super().__init__(*args, directory=directory)

    def send_head(self) -> Any:
        """Answer 403 to whoever has not the token."""
        if hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return super().send_head()
        self.send_error(HTTPStatus.FORBIDDEN)
        return None

    # A002: the parameter's name is that of the base class.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: the job reports what was fetched."""
