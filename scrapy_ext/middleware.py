"""The middlewares: one sees what callbacks yield, the other which downloads failed."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from bloomlock.errors import ConfigurationError
from scrapy_ext.engine import Bell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_ext.dupefilter import BloomDupeFilter
    from scrapy_ext.scheduler import Scheduler

MOST_OUTPUTS = 1000
"""A list of this many is checked in about 4 ms."""


class _Middleware:
    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler that this middleware serves."""
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)


class BatchingMiddleware(_Middleware):
    """Checks the requests that a callback yields together, and drops duplicates.

    The add-on sets it. Elsewhere: `SPIDER_MIDDLEWARES = {"scrapy_ext.BatchingMiddleware": 10}`,
    nearest to the engine, so that what other middlewares drop is not recorded. Outputs are read
    until the callback waits for something, or there are 1,000; the reactor goes on while they are
    checked in one round trip. They keep their order. Start requests are not checked here. With
    other schedulers and duplicates filters than those of `scrapy_ext` nothing is done.
    """

    checker: Scheduler | BloomDupeFilter | None = None

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what a callback yields, without the duplicates."""
        page, checker, crawler = response.request, self.checker, self._crawler
        if checker is None or page is None:
            async for output in result:
                yield output
            return
        async with aclosing(_in_batches(result)) as batches:
            async for outputs in batches:
                requests = [output for output in outputs if isinstance(output, Request)]
                has_items = len(requests) < len(outputs)
                are_kept = iter(await checker.check_many(requests, page, has_items=has_items))
                for output in outputs:
                    if not isinstance(output, Request) or next(are_kept):
                        yield output
                        continue
                    checker.log_duplicate(output)
                    crawler.signals.send_catch_log(
                        signals.request_dropped, request=output, spider=crawler.spider
                    )

    def process_spider_exception(self, response: Response, exception: Exception) -> None:
        """Note a callback that closes the spider; Scrapy does not signal it as an error."""
        # The filter alone keeps no pages.
        pages = getattr(self.checker, "pages", None)
        if isinstance(exception, CloseSpider) and pages is not None and response.request:
            pages.fail(response.request, f"CloseSpider: {exception.reason}")


class DownloadMiddleware(_Middleware):
    """Tells the scheduler which downloads failed for good.

    The add-on sets it at 10: nearest to the engine, so after the retries.
    """

    queue: Scheduler | None = None

    def process_response(self, request: Request, response: Response) -> Response:
        """Note a response that is an error of the server."""
        statuses = map(int, self._crawler.settings.getlist("RETRY_HTTP_CODES"))
        if self.queue is not None and response.status in statuses:
            self.queue.pages.fail(request, f"status {response.status}")
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Note a failed download that no errback cares for."""
        is_refused = isinstance(exception, IgnoreRequest)
        if self.queue is not None and request.errback is None and not is_refused:
            self.queue.pages.fail(request, f"{type(exception).__name__}: {exception}")


def attach(crawler: Crawler, queue: Scheduler) -> None:
    """Make the middlewares of a crawl work for its scheduler."""
    outputs = crawler.get_spider_middleware(BatchingMiddleware)
    downloads = crawler.get_downloader_middleware(DownloadMiddleware)
    # Without them a failed download counts as done, and so does a page whose child requests that
    # cannot be serialized are still open.
    if outputs is None or downloads is None:
        raise ConfigurationError(
            "scrapy_ext.Scheduler needs scrapy_ext.BatchingMiddleware in SPIDER_MIDDLEWARES and "
            "scrapy_ext.DownloadMiddleware in DOWNLOADER_MIDDLEWARES; the add-on sets both: "
            'ADDONS = {"scrapy_ext.BloomlockAddon": 500}'
        )
    outputs.checker = downloads.queue = queue


async def _in_batches(source: AsyncIterator[Any]) -> AsyncGenerator[list[Any]]:
    """Yield what a source yields in lists, each as soon as the source waits for something.

    A task of its own reads, and stops where the source does. What it raises comes after the
    outputs before it.
    """
    outputs: list[Any] = []
    has_ended = False
    # The reader waits while the list is full, the consumer while it is empty: never both.
    bell = Bell()

    async def read() -> None:
        nonlocal has_ended
        try:
            async for output in source:
                outputs.append(output)
                bell.ring()
                if len(outputs) >= MOST_OUTPUTS:
                    await bell.wait()
        finally:
            has_ended = True
            bell.ring()

    reading = deferred_from_coro(read())
    try:
        while outputs or not has_ended:
            if not outputs:
                await bell.wait()
                continue
            batch, outputs[:] = [*outputs], []
            bell.ring()
            yield batch
        await maybe_deferred_to_future(reading)
    finally:
        reading.addErrback(lambda _: None)
        reading.cancel()
