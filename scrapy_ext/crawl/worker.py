"""A worker of `bloomlock crawl`: a Scrapy process with the add-on, as any project has.

Its settings are JSON in the variable GIVEN. It tells of each page by a JSON line on its output.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from w3lib.url import canonicalize_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.http import Response
    from twisted.python.failure import Failure

GIVEN = "BLOOMLOCK_CRAWL"
LINKS = LinkExtractor(
    tags=("a", "area", "iframe"), attrs=("href", "src"), deny_extensions=(), unique=False
)
SETTINGS: dict[str, Any] = {
    "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "BLOOMLOCK_ON_OUTAGE": "close",
    "USER_AGENT": f"bloomlock/{version('bloomlock')}",
    "AUTOTHROTTLE_START_DELAY": 0.5,
    "AUTOTHROTTLE_MAX_DELAY": 10.0,
    "DOWNLOAD_TIMEOUT": 20.0,
    "DOWNLOAD_MAXSIZE": 32 << 20,
    # Each of these fetches a page under another URL than its link.
    "REDIRECT_ENABLED": False,
    "METAREFRESH_ENABLED": False,
    "HTTPERROR_ALLOW_ALL": True,
    "COOKIES_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
    "LOG_LEVEL": "INFO",
}


class SiteSpider(Spider):
    """Follows every link to the host, or in the folder, that it starts in; tells what it meets."""

    name = "site"
    start_url: str

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._links = 1
        self._job = os.getppid()
        self._met: set[str] = set()
        start = urlsplit(self.start_url)
        self._folder = start.path.rpartition("/")[0] if start.scheme == "file" else ""
        host = re.escape(start.netloc)
        self._is_here = re.compile(rf"https?://{host}(?:[/?#]|$)", re.IGNORECASE).match

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self.start_url, errback=self.failed)

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Request]:
        """Tell of the page and all its links, then offer these to the filter."""
        del kwargs
        why = ""
        links: list[str] = []
        if response.status >= HTTPStatus.BAD_REQUEST:
            why = f"status {response.status}"
        elif location := response.headers.get("Location"):
            links = [response.urljoin(location.decode("latin-1").strip())]
            why = "" if self.target(links[0]) else f"redirects to {links[0]}"
        elif isinstance(response, HtmlResponse):
            links = [link.url for link in LINKS.extract_links(response)]
        links = [*filter(None, map(self.target, links))]
        self._links += len(links)
        found = {*map(canonicalize_url, links)} - self._met
        self._met |= found
        # If a link is lost after this line, the report counts it as missed.
        self._tell(canonicalize_url(response.url), why=why, found=[*found])
        for link in links:
            yield Request(link, errback=self.failed)

    def failed(self, failure: Failure) -> None:
        request: Request = failure.request  # type: ignore[attr-defined] # set by Scrapy
        self._tell(canonicalize_url(request.url), why=failure.getErrorMessage())

    def closed(self, reason: str) -> None:
        self._tell(reason=reason)

    def _tell(self, page: str = "", **more: Any) -> None:
        """Write a line, in one write: a worker that is killed leaves whole ones."""
        get = self.crawler.stats.get_value
        told = {"page": page, "why": "", "found": (), "reason": "", **more} | {
            "links": self._links,
            "duplicates": get("dupefilter/filtered", 0),
            "bytes": get("bloomlock/memory_bytes"),
            "fill": get("bloomlock/fill_ratio"),
        }
        os.write(1, json.dumps(told).encode() + b"\n")
        if os.getppid() != self._job:
            raise CloseSpider("the job is gone")

    def target(self, url: str) -> str:
        """Return where a link leads on this site; empty if it leads to another."""
        if not self._folder:
            return url if self._is_here(url) else ""
        if not url.startswith("file:"):
            return ""
        # As on a server the folder is the root, and each of its folders means its index.
        path = urlsplit(url).path
        if not path.startswith(f"{self._folder}/"):
            path = self._folder + path
        return f"file://{path}index.html" if path.endswith("/") else f"file://{path}"


if __name__ == "__main__":
    given = json.loads(os.environ[GIVEN])
    start_url = given.pop("START_URL")
    process = CrawlerProcess({**SETTINGS, **given})
    process.crawl(SiteSpider, start_url=start_url)
    # Collecting garbage among imported modules takes a fifth of a short crawl.
    gc.freeze()
    process.start()
    sys.exit(process.bootstrap_failed)
