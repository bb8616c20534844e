"""The page of `bloomlock crawl --watch`: what a job has done so far, on a loopback port."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_ext.crawl.job import Job


@contextmanager
def watched(job: Job) -> Iterator[str]:
    """Serve the page in a thread; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Page, job))
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class _Page(BaseHTTPRequestHandler):
    def __init__(self, job: Job, *args: Any) -> None:
        self._job = job
        super().__init__(*args)

    def do_GET(self) -> None:
        # A page of another site may ask this port by a name of its own: no figures for it.
        if not self.headers.get("Host", "").startswith("127.0.0.1:"):
            self.send_error(403)
            return
        kind, body = "application/json", json.dumps(self._job.figures()).encode()
        if self.path != "/figures":
            kind, body = "text/html", (files("scrapy_ext.crawl") / "watch.html").read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
