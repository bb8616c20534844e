"""A duplicates filter in this process, asked as Scrapy asks it: by its scheduler and middleware."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.http import Response
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_ext import BloomDupeFilter
from scrapy_ext.middleware import BatchingMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


NAME = "spider"
WAYS = ("one by one", "batches")


class IdleCrawler(Crawler):
    """A crawler without an engine, which has the two middlewares that the filter looks for."""

    engine = None
    outputs: BatchingMiddleware
    offsite: OffsiteMiddleware

    def get_spider_middleware(self, _: Any) -> Any:
        return self.outputs

    def get_downloader_middleware(self, _: Any) -> Any:
        return self.offsite


def crawler_of(**settings: Any) -> IdleCrawler:
    """Return a crawler that has a spider and stats, without what `get_crawler` asks for."""
    crawler = IdleCrawler(
        Spider, {"BLOOMLOCK_CAPACITY": 1000, "BLOOMLOCK_FILTER": {"timeout": 60}, **settings}
    )
    crawler.stats = MemoryStatsCollector(crawler)
    crawler.crawling = True
    crawler.spider = Spider("spider")
    crawler.spider.crawler = crawler
    crawler.outputs = BatchingMiddleware(crawler)
    crawler.offsite = OffsiteMiddleware(crawler)
    # Scrapy 2.14 reads the allowed domains here; later versions do it at the first request.
    crawler.offsite.spider_opened(crawler.spider)
    fingerprinter = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
    crawler.request_fingerprinter = build_from_crawler(fingerprinter, crawler)
    return crawler


class AskedFilter:
    """The filter of a crawler, and its middleware.

    Args:
        url: The server.
        way: "one by one", as by a scheduler, or "batches", as the requests of one page.
        settings: Those of the project.
    """

    def __init__(self, url: str, way: str, **settings: Any) -> None:
        self.crawler = crawler_of(BLOOMLOCK_URL=url, **settings)
        self.way = way
        self.middleware = self.crawler.outputs
        self.filter = BloomDupeFilter.from_crawler(self.crawler)
        self.filter.open()
        self._loop = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self.filter.close("finished")

    def run(self, scenario: Any) -> Any:
        return self._loop.run(scenario)

    def stat(self, name: str) -> int:
        return int(self.crawler.stats.get_value(f"bloomlock/{name}", 0))  # type: ignore[union-attr]

    def ask(self, *paths: str, **meta: Any) -> str:
        """Ask about requests to paths; return a letter for each: n, it is new, or s, it is not."""
        return str(self.run(self.ask_page([request(path, **meta) for path in paths])))

    async def ask_page(self, requests: list[Request]) -> str:
        """Let a callback yield requests, and schedule what comes out of the middleware."""
        if self.way == "one by one":
            return "".join(map(self.letter, requests))

        async def callback() -> AsyncIterator[Any]:
            for one in requests:
                yield one

        passed = [one async for one in self.outputs(callback())]
        return "".join(self.letter(one) if one in passed else "s" for one in requests)

    def outputs(self, callback: AsyncIterator[Any]) -> AsyncIterator[Any]:
        response = Response("https://example.org/page", request=request("page"))
        return self.middleware.process_spider_output(response, callback)

    def letter(self, one: Request) -> str:
        return "s" if self.filter.request_seen(one) else "n"


def request(path: str, **meta: Any) -> Request:
    return Request(f"https://example.org/{path}", meta=meta)
