"""Whole crawls of a real site by two or four processes, against one crawl in memory.

One site is documentation rendered by pydoc. Another is the folder that BLOOMLOCK_TEST_SITE names,
with at least one `index.html`: unpacked documentation packages of Debian, for example.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from scrapy_ext.crawl.render import pydoc_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 600.0
PACKAGES = ("asyncio", "email", "json")
MOST_STARTS = 4
SCHEDULERS: dict[str, dict[str, Any]] = {
    "scrapy": {"SPIDER_MIDDLEWARES": {"scrapy_ext.middleware.BatchingMiddleware": 10}},
    "claims": {
        "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
        "BLOOMLOCK_MARK": "processed",
        "BLOOMLOCK_LEASE": 600,
    },
    "bloomlock": {"SCHEDULER": "scrapy_ext.Scheduler"},
    "scrapy-redis": {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
    },
}


class FolderSite:
    """A folder on a loopback port; its first requests are answered together."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        indexes = sorted(
            folder.rglob("index.html"), key=lambda path: (-len([*path.parent.iterdir()]), path)
        )
        pages = sorted(set(indexes[0].parent.glob("*.html")) - set(indexes))
        step = max(1, len(pages) // (MOST_STARTS - 1))
        starts = [*indexes, *pages[::step]][:MOST_STARTS]
        self.starts = [path.relative_to(folder).as_posix() for path in starts]
        self.together = threading.Barrier(1)
        handler = partial(_Handler, directory=str(folder))
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.site = self
        self._left = 0
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hold(self, count: int) -> None:
        """Answer no request before as many are there."""
        self.together = threading.Barrier(count)
        self._left = count

    def on_request(self) -> None:
        with self._lock:
            held = self._left > 0
            self._left -= held
        if held:
            self.together.wait(PATIENCE)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    site: FolderSite


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self.server.site.on_request()
        super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


PROCESSES = {"pydoc": 4, "named": 2}
"""For each site: how many crawl it at once. What one process does alone, other files test."""


@pytest.fixture(scope="module", params=PROCESSES)
def site(request: pytest.FixtureRequest) -> Iterator[FolderSite]:
    """Each site has filters and queues of its own, by its name."""
    if request.param == "pydoc":
        folder = pydoc_site(packages=PACKAGES)
    elif named := os.environ.get("BLOOMLOCK_TEST_SITE"):
        folder = Path(named)
    elif os.environ.get("CI"):
        pytest.fail("BLOOMLOCK_TEST_SITE names no site")
    else:
        pytest.skip("BLOOMLOCK_TEST_SITE names no site")
    with FolderSite(folder, request.param) as made:
        yield made


@pytest.fixture(scope="module")
def crawl(site: FolderSite, run_spider: Callable[..., Any]) -> Callable[..., list[list[str]]]:
    """Crawl the site from several pages, one process for each; return what each fetched."""

    def crawl(name: str, *starts: list[str], **settings: Any) -> list[list[str]]:
        site.hold(sum(map(len, starts)))
        tasks = [
            {
                "name": name,
                "spider": "SiteSpider",
                "start": site.url,
                "settings": {"STARTS": [f"{site.url}/{page}" for page in pages], **settings},
            }
            for pages in starts
        ]
        processes = [run_spider(task) for task in tasks]
        try:
            answers = [process.communicate(PATIENCE) for process in processes]
        finally:
            for process in processes:
                process.end()
        assert [process.returncode for process in processes] == [0] * len(starts), answers
        return [json.loads(out)["fetched"] for out, _ in answers]

    return crawl


@pytest.fixture(scope="module")
def in_memory(site: FolderSite, crawl: Callable[..., list[list[str]]]) -> frozenset[str]:
    """What one process with Scrapy's own filter fetches."""
    (fetched,) = crawl("one", site.starts, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter")
    pages = frozenset(fetched)
    assert len(pages) > 50, "a real site"
    return pages


@pytest.mark.processes
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_processes_fetch_what_one_in_memory_does(
    site: FolderSite,
    crawl: Callable[..., list[list[str]]],
    in_memory: frozenset[str],
    valkey: str,
    scheduler: str,
) -> None:
    processes = PROCESSES[site.name]
    fetched = crawl(
        f"{site.name}-{scheduler}",
        *(site.starts[number::processes] for number in range(processes)),
        REDIS_URL=valkey,
        BLOOMLOCK_CAPACITY=20 * len(in_memory),
        BLOOMLOCK_ERROR_RATE=1e-9,
        # A slow machine is no outage.
        BLOOMLOCK_TIMEOUT=60,
        **SCHEDULERS[scheduler],
    )
    counts = Counter(path for pages in fetched for path in pages)
    assert set(counts) == in_memory
    # Scrapy does not filter the pages it starts on: a link may lead to them first.
    starts = {f"/{page}" for page in site.starts}
    assert {path for path, count in counts.items() if count > 1} <= starts
    assert max(counts.values()) <= 2
