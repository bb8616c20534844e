"""The page of `bloomlock crawl --watch`: what a job has done so far, on a loopback port."""

from __future__ import annotations

import json
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from scrapy_ext.crawl.site import Handler, served

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from scrapy_ext.crawl.job import Job


def watched(job: Job) -> AbstractContextManager[str]:
    """Serve the page on a free port of 127.0.0.1; yields its address."""
    return served(partial(_Page, job))


class _Page(Handler):
    def __init__(self, job: Job, *args: Any) -> None:
        self._job = job
        super().__init__(*args)

    def do_GET(self) -> None:  # noqa: N802 - the name is that of the base class
        # A page of another site may ask this port by a name of its own: no figures for it.
        if not self.headers.get("Host", "").startswith("127.0.0.1:"):
            self.send_error(403)
        elif self.path == "/figures":
            self._send("application/json", json.dumps(self._job.figures()).encode())
        elif self.path == "/":
            page = files("scrapy_ext.crawl") / "watch.html"
            self._send("text/html; charset=utf-8", page.read_bytes())
        else:
            self.send_error(404)

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
