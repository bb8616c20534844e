"""The page of `bloomlock crawl --watch`: what a job has done so far, on a loopback port."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from scrapy_ext.crawl.site import LoopbackServer, served

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from scrapy_ext.crawl.job import Report


class WatchServer(LoopbackServer):
    """Serves the page and its figures; `report` is the job, once it runs."""

    report: Report | None = None


def watched() -> AbstractContextManager[WatchServer]:
    """Serve the page on a free port of 127.0.0.1."""
    return served(WatchServer(("127.0.0.1", 0), _Handler))


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        # A page of another site may ask this port by a name of its own: no figures for it.
        if self.headers.get("Host") != f"127.0.0.1:{self.server.server_port}":
            self.send_error(403)
        elif self.path == "/figures":
            self._send("application/json", json.dumps(_figures(self.server.report)).encode())
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

    # A002: the parameter's name is that of the base class.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def _figures(report: Report | None) -> dict[str, Any]:
    if report is None:
        return {"title": "starting", "workers": []}
    state = report.state
    return {
        "title": report.title,
        "seconds": report.seconds,
        "pages": len(report.fetched),
        "links": report.links,
        "duplicates": report.duplicates,
        "failed": len(report.failed),
        "waiting": state.waiting if state else 0,
        "hosts": state.by_host if state else {},
        "fill": report.fill,
        "state": state.state if state else "starting",
        "workers": [
            {"pid": one.process.pid, "pages": one.pages, "runs": one.is_running, "last": one.last}
            for one in report.workers
        ],
    }
