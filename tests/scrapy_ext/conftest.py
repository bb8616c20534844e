"""A small site, and real Scrapy processes that crawl it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.reactor import install_reactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PAGES = 8
RUN_SPIDER = Path(__file__).with_name("run_spider.py")
SUPPORT = Path(__file__).parents[1] / "support"
PATIENCE = 300.0
STATUS = 2

try:
    is_asyncio_available()
except RuntimeError:
    # The oldest Scrapy asks for a reactor first; a crawl has one.
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")


@dataclass
class Site:
    """Pages /0 to /7 that all link to all of them, twice.

    With other `links` a page links to the pages that they return for its number. `on_request` is
    called with the number of the request, and may hold its answer back. `answer` returns a status
    for a path, and where it leads.
    """

    url: str
    requested: list[str] = field(default_factory=list)
    on_request: Callable[[int], None] | None = None
    answer: Callable[[str], list[Any]] | None = None
    links: Callable[[int], Iterable[int]] = lambda _: [*range(PAGES), *range(PAGES)]

    @property
    def paths(self) -> list[str]:
        return [f"/{page}" for page in range(PAGES)]

    def page(self, path: str) -> bytes:
        targets = self.links(int(path[1:].partition("?")[0]))
        links = "".join(f'<a href="/{page}">{page}</a>' for page in targets)
        return f"<html><body>{links}</body></html>".encode()


@pytest.fixture
def server(valkey: str) -> Iterator[redis.Redis]:
    """A client of an empty server."""
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        yield client


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
            status, *location = made.answer(self.path) if made.answer else [200]
            self.send_response(status)
            if location:
                self.send_header("Location", location[0])
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


class Spider:
    """A Scrapy process."""

    def __init__(self, pid: int, files: list[int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._outputs = [""] * 3
        self._readers = [
            threading.Thread(target=self._read, args=item, daemon=True) for item in enumerate(files)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, number: int, file: int) -> None:
        with os.fdopen(file) as pipe:
            # Processes started later have the file of the status open, too: it does not end.
            self._outputs[number] = pipe.readline() if number == STATUS else pipe.read()

    @property
    def is_running(self) -> bool:
        """Whether it runs, or has just ended."""
        return self._readers[2].is_alive()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; return what it printed, and its log."""
        for reader in self._readers:
            reader.join(timeout)
            assert not reader.is_alive(), "it does not end"
        out, log, status = self._outputs
        self.returncode = int(status)
        return out, log

    def end(self) -> None:
        """Kill it if it runs."""
        if self.returncode is None:
            if self.is_running:
                # It may have ended just now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.communicate(PATIENCE)


@pytest.fixture(scope="session")
def run_spider() -> Iterator[Callable[[dict[str, Any]], Spider]]:
    """Start a Scrapy process, from one that has Scrapy imported."""
    ours, theirs = socket.socketpair()
    server = subprocess.Popen(
        [sys.executable, str(RUN_SPIDER), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
    )
    theirs.close()
    ours.settimeout(PATIENCE)

    def run(task: dict[str, Any]) -> Spider:
        ends = [os.pipe() for _ in range(3)]
        socket.send_fds(ours, [json.dumps(task).encode()], [writing for _, writing in ends])
        for _, writing in ends:
            os.close(writing)
        return Spider(int(ours.recv(100)), [reading for reading, _ in ends])

    yield run
    ours.close()
    server.wait(PATIENCE)


@dataclass
class Crawl:
    """A Scrapy process that runs or has run."""

    process: Spider
    fetched: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    events: list[list[str]] = field(default_factory=list)
    log: str = ""

    def finish(self) -> Crawl:
        out, self.log = self.process.communicate(PATIENCE)
        if out:
            answer = json.loads(out)
            self.fetched, self.stats = answer["fetched"], answer["stats"]
            self.events = answer["events"]
        return self

    def own(self, name: str) -> Any:
        return self.stats.get(f"bloomlock/{name}", 0)


@pytest.fixture
def start_spider(
    site: Site, valkey: str, run_spider: Callable[[dict[str, Any]], Spider]
) -> Iterator[Callable[..., Crawl]]:
    """Start a Scrapy process on the site; keyword arguments but the spider's are settings."""
    started: list[Spider] = []

    def start(
        name: str = "spider",
        arguments: dict[str, Any] | None = None,
        spider: str = "LinkSpider",
        **settings: Any,
    ) -> Crawl:
        task = {
            "name": name,
            "spider": spider,
            "start": f"{site.url}/0",
            # A slow machine is no outage.
            "settings": {
                "REDIS_URL": valkey,
                "BLOOMLOCK_CAPACITY": 1000,
                "BLOOMLOCK_TIMEOUT": 60,
                "SPIDER_MIDDLEWARES": {"scrapy_ext.middleware.BatchingMiddleware": 10},
                **settings,
            },
            "arguments": arguments or {},
        }
        started.append(run_spider(task))
        return Crawl(started[-1])

    yield start
    for spider in started:
        spider.end()


@pytest.fixture
def crawl(start_spider: Callable[..., Crawl]) -> Callable[..., Crawl]:
    """Run a Scrapy process on the site to its end."""

    def run(*args: Any, **settings: Any) -> Crawl:
        return start_spider(*args, **settings).finish()

    return run
