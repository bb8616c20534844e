"""The spider: every page of one site, and a journal of what it met."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.http import HtmlResponse
from scrapy.utils.asyncio import call_later
from w3lib.html import get_base_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.python.failure import Failure

    from scrapy_ext.crawl.stats import Journal

_COUNT_S = 0.1
"""How often a worker writes down its counters."""
_FIRST_REFUSAL = 400
_FIRST_REDIRECT = 300
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class CrawlConfig:
    """The part of a job that is the same for each of its workers; see JobOptions.

    Attributes:
        token: What the job's own folder server wants in its header; empty for other sites.
        queue: Key of the queue.
        workers: What each worker is called there.
        throttle: Whether each worker slows down with the site.
    """

    start: str
    token: str = field(repr=False)
    redis: str = field(repr=False)
    filter_name: str
    capacity: int
    error_rate: float
    queue: str
    workers: list[str]
    robots: bool
    concurrency: int
    delay: float
    throttle: bool
    timeout: float

    @property
    def last_pages(self) -> float:
        """How long a stopped worker may take for the pages it has in flight, in seconds."""
        return 15.0 + self.delay * self.concurrency

    def save(self, path: Path) -> None:
        """Write the file; it holds passwords, so it belongs into a private folder."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> CrawlConfig:
        """Read the file."""
        return cls(**json.loads(path.read_text("utf-8")))


class SiteSpider(Spider):
    """Follows every link to the host it started on, and stays until the job stops it."""

    name = "site"

    def __init__(
        self,
        config: CrawlConfig,
        journal: Journal,
        worker: int,
        is_stopped: Callable[[], bool],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.journal = journal
        self._is_stopped = is_stopped
        self.worker = config.workers[worker]

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> SiteSpider:
        """Make the spider of a worker, and stay when idle."""
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self._idle, signal=signals.spider_idle)
        crawler.signals.connect(self._count, signal=signals.spider_opened)
        return self

    async def start(self) -> AsyncIterator[Request]:
        """Offer the first page; the shared filter lets one worker have it."""
        yield self._request(self.config.start)

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Request]:
        """Note the page, then offer all its links to the filter.

        The links are noted before the first is offered: one that is lost on its way is missed.
        """
        del kwargs
        key = self._key(response.request)
        if response.status >= _FIRST_REFUSAL:
            self.journal.refused(key, response.url, f"status {response.status}")
            return
        if (away := self._leads_away(response)) is not None:
            self.journal.refused(key, response.url, f"redirects to {away}")
            return
        requests = [self._request(url) for url in self._links(response)]
        found = [(self._key(request), request.url) for request in requests]
        self.journal.page(key, response.url, found)
        yield from requests

    def failed(self, failure: Failure) -> Iterator[Request]:
        """Note a page that is not available, or leave it to the next job.

        The job's own folder server dies with the job, which says nothing about the page.
        """
        request: Request = failure.request  # type: ignore[attr-defined] # set by Scrapy
        if isinstance(failure.value, IgnoreRequest):
            self.journal.refused(self._key(request), request.url, str(failure.value))
        elif self._is_stopped():
            yield self._request(request.url).replace(dont_filter=True)
        else:
            self.journal.failed(self._key(request), request.url, failure.getErrorMessage())

    def _idle(self) -> None:
        """Stay: another worker may be about to queue pages."""
        raise DontCloseSpider

    def _count(self) -> None:
        self.journal.count()
        if self.crawler.engine.spider is not None:
            call_later(_COUNT_S, self._count)

    def _request(self, url: str) -> Request:
        return Request(url, callback=self.parse, errback=self.failed)

    def _key(self, request: Request | None) -> bytes:
        if request is None:
            raise TypeError("a response without its request")
        return self.crawler.request_fingerprinter.fingerprint(request)

    def _leads_away(self, response: Response) -> str | None:
        """Return where a page redirects to, if that is another site."""
        target = _redirect(response)
        return None if target is None or self._is_here(target) else target

    def _links(self, response: Response) -> Iterator[str]:
        """Yield the target of every link of a page that leads to the same site, repeats too."""
        if (target := _redirect(response)) is not None:
            yield target
        elif isinstance(response, HtmlResponse):
            base = get_base_url(response.text[:4096], response.url, response.encoding)
            for link in response.xpath("//a/@href | //area/@href | //iframe/@src").getall():
                url = _join(base, link.strip())
                if link.strip() and self._is_here(url):
                    yield url

    def _is_here(self, url: str) -> bool:
        try:
            return urlsplit(url).scheme in _PORTS and same_site(url, self.config.start)
        except ValueError:
            return False


def _redirect(response: Response) -> str | None:
    """Return where a response redirects to, if it does."""
    target = response.headers.get("Location")
    if target is None or not _FIRST_REDIRECT <= response.status < _FIRST_REFUSAL:
        return None
    return _join(response.url, target.decode("latin-1").strip())


def _join(base: str, link: str) -> str:
    """Return the address of a link, or an empty string if it is none."""
    try:
        return urljoin(base, link)
    except ValueError:
        return ""


def same_site(first: str, second: str) -> bool:
    """Return whether two URLs name the same host and port; http and https count as one.

    ValueError if one of them is no URL.
    """
    return _site(first) == _site(second)


def _site(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    return parts.hostname, 0 if port in _PORTS.values() else port
