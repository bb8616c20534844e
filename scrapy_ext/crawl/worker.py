"""A worker of `bloomlock crawl`: a Scrapy process with the add-on, as any project has.

From standard input it reads its settings, one JSON line. It stops in order when that ends, as it
does when the job is killed. To standard output it writes what it did, a JSON line for each page.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

from scrapy_ext.crawl.site import TOKEN_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.python.failure import Failure

PORTS = {"http": 80, "https": 443}
FIRST_REDIRECT, FIRST_REFUSAL = 300, 400
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
    # Each of these would fetch a page under another URL than that of the link.
    "REDIRECT_ENABLED": False,
    "METAREFRESH_ENABLED": False,
    "HTTPERROR_ALLOW_ALL": True,
    "COOKIES_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
    "LOG_LEVEL": "INFO",
}


class SiteSpider(Spider):
    """Follows every link to the host that it starts on, and tells what it meets."""

    name = "site"

    start_url: str
    _links = 0
    _met: set[str]

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        self: Self = super().from_crawler(crawler, *args, **kwargs)
        self._met = set()
        crawler.signals.connect(self._closed, signal=signals.spider_closed)
        return self

    async def start(self) -> AsyncIterator[Request]:
        self._links += 1
        yield self._request(self.start_url)

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Request]:
        """Tell of the page and all its links, then offer these to the filter.

        A link that is lost after that is missed in the report.
        """
        del kwargs
        target = self._redirect_of(response)
        if response.status >= FIRST_REFUSAL:
            self._tell("refused", response.request, why=f"status {response.status}")
        elif target is not None and not self._is_here(target):
            self._tell("refused", response.request, why=f"redirects to {target}")
        else:
            urls = [target] if target is not None else self._links_of(response)
            requests = [self._request(url) for url in urls]
            self._links += len(requests)
            found = {self._key(request): request.url for request in requests}
            fresh = {key: url for key, url in found.items() if key not in self._met}
            self._met.update(fresh)
            self._tell("page", response.request, found=fresh)
            yield from requests

    def failed(self, failure: Failure) -> None:
        request: Request = failure.request  # type: ignore[attr-defined] # set by Scrapy
        kind = "refused" if isinstance(failure.value, IgnoreRequest) else "failed"
        self._tell(kind, request, why=failure.getErrorMessage())

    def _closed(self, reason: str) -> None:
        self._tell("closed", None, reason=reason)

    def _tell(self, kind: str, request: Request | None, **fields: Any) -> None:
        """Write a line, in one write: a worker that is killed leaves whole ones."""
        if request is not None:
            fields |= {"key": self._key(request), "url": request.url}
        stats = self.crawler.stats
        if stats is not None:
            fields["duplicates"] = stats.get_value("dupefilter/filtered", 0)
            fields["filter_bytes"] = stats.get_value("bloomlock/memory_bytes")
            fields["fill"] = stats.get_value("bloomlock/fill_ratio")
        line = json.dumps({"kind": kind, "links": self._links, **fields})
        os.write(1, line.encode() + b"\n")

    def _request(self, url: str) -> Request:
        return Request(url, callback=self.parse, errback=self.failed)

    def _key(self, request: Request) -> str:
        return self.crawler.request_fingerprinter.fingerprint(request).hex()

    def _links_of(self, response: Response) -> Iterator[str]:
        """Yield the target of every link of a page that leads to the same site, repeats too."""
        if isinstance(response, HtmlResponse):
            yield from filter(self._is_here, (link.url for link in LINKS.extract_links(response)))

    def _redirect_of(self, response: Response) -> str | None:
        target = response.headers.get("Location")
        if target is None or not FIRST_REDIRECT <= response.status < FIRST_REFUSAL:
            return None
        try:
            return response.urljoin(target.decode("latin-1").strip())
        except ValueError:
            return ""

    def _is_here(self, url: str) -> bool:
        try:
            return urlsplit(url).scheme in PORTS and _site(url) == _site(self.start_url)
        except ValueError:
            return False


def _site(url: str) -> tuple[str | None, int]:
    """Return host and port; http and https count as one. ValueError if it is no URL."""
    parts = urlsplit(url)
    port = parts.port or PORTS.get(parts.scheme, 0)
    return parts.hostname, 0 if port in PORTS.values() else port


def main() -> int:
    """Run one worker to its end; return its exit status."""
    given = json.loads(io.FileIO(0, closefd=False).readline())
    if token := given.pop("TOKEN", ""):
        given["DEFAULT_REQUEST_HEADERS"] = {TOKEN_HEADER: token}
    start_url = given.pop("START_URL")
    process = CrawlerProcess({**SETTINGS, **given})
    process.crawl(SiteSpider, start_url=start_url)
    threading.Thread(target=_stop_with_job, daemon=True).start()
    # What is imported stays, so a search for garbage among it is a fifth of a short crawl.
    gc.freeze()
    process.start()
    return int(process.bootstrap_failed)


def _stop_with_job() -> None:
    """Stop in order when standard input ends; runs in a thread."""
    # Not through sys.stdin, whose lock this thread would hold when the interpreter ends: it aborts.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
