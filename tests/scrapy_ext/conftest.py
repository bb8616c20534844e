"""A small site, and real Scrapy processes that crawl it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PAGES = 8
RUN_SPIDER = Path(__file__).with_name("run_spider.py")


@dataclass
class Site:
    """Pages /0 to /7 that all link to all of them, twice.

    With other `links` a page links to the pages that they return for its number. `on_request` is
    called with the number of the request, and may hold its answer back.
    """

    url: str
    requested: list[str] = field(default_factory=list)
    on_request: Callable[[int], None] | None = None
    links: Callable[[int], Iterable[int]] = lambda _: [*range(PAGES), *range(PAGES)]

    @property
    def paths(self) -> list[str]:
        return [f"/{page}" for page in range(PAGES)]

    def page(self, path: str) -> bytes:
        targets = self.links(int(path[1:]))
        links = "".join(f'<a href="/{page}">{page}</a>' for page in targets)
        return f"<html><body>{links}</body></html>".encode()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site on a loopback port that remembers what was asked for."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with lock:
                made.requested.append(self.path)
                count = len(made.requested)
            if made.on_request:
                made.on_request(count)
            body = made.page(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@dataclass
class Crawl:
    """A Scrapy process that runs or has run."""

    process: subprocess.Popen[str]
    fetched: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def finish(self) -> Crawl:
        out, self.log = self.process.communicate(timeout=300)
        if out:
            answer = json.loads(out)
            self.fetched, self.stats = answer["fetched"], answer["stats"]
        return self

    def own(self, name: str) -> Any:
        return self.stats.get(f"dupefilter/bloomlock/{name}", 0)


@pytest.fixture
def start_spider(site: Site, valkey: str) -> Iterator[Callable[..., Crawl]]:
    """Start a Scrapy process on the site; keyword arguments are settings."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str = "spider", **settings: Any) -> Crawl:
        process = subprocess.Popen(
            [sys.executable, str(RUN_SPIDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        task = {
            "name": name,
            "start": f"{site.url}/0",
            # A slow machine is no outage.
            "settings": {
                "REDIS_URL": valkey,
                "BLOOMLOCK_CAPACITY": 1000,
                "BLOOMLOCK_TIMEOUT": 60,
                **settings,
            },
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(task))
        process.stdin.close()
        process.stdin = None
        return Crawl(process)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def crawl(start_spider: Callable[..., Crawl]) -> Callable[..., Crawl]:
    """Run a Scrapy process on the site to its end."""

    def run(*args: Any, **settings: Any) -> Crawl:
        return start_spider(*args, **settings).finish()

    return run
