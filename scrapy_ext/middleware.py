"""The middlewares: one sees what callbacks yield, the other which downloads failed."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_ext.dupefilter import BloomDupeFilter
    from scrapy_ext.scheduler import Scheduler

logger = logging.getLogger("bloomlock.scrapy")

MOST_OUTPUTS = 1000
"""Outputs that are read before they are checked: a round trip of about 4 ms."""


class BatchingMiddleware:
    """Checks the requests that a callback yields together, and drops duplicates.

    The add-on sets it. Elsewhere: `SPIDER_MIDDLEWARES = {"scrapy_ext.BatchingMiddleware": 10}`,
    nearest to the engine, so that what other middlewares drop is not recorded. Outputs are read
    until the callback waits for something, or there are 1,000; the reactor goes on while they are
    checked in one round trip. They keep their order. Start requests are not checked here. With
    other schedulers and duplicates filters than those of `scrapy_ext` nothing is done.
    """

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler.

        Args:
            crawler: The crawler this middleware serves.
        """
        self._crawler = crawler
        self.checker: Scheduler | BloomDupeFilter | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what a callback yields, without the duplicates."""
        page, checker = response.request, self.checker
        if checker is None or page is None:
            async for output in result:
                yield output
            return
        async with aclosing(_in_batches(result)) as batches:
            async for outputs in batches:
                requests = [output for output in outputs if isinstance(output, Request)]
                if len(requests) < len(outputs):
                    checker.gave_item(page)
                are_kept = iter(await checker.check_many(requests, page) if requests else ())
                for output in outputs:
                    if not isinstance(output, Request) or next(are_kept):
                        yield output
                    else:
                        checker.log_duplicate(output)
                        self._crawler.signals.send_catch_log(
                            signals.request_dropped, request=output, spider=self._crawler.spider
                        )


class DownloadMiddleware:
    """Tells the scheduler which downloads failed for good.

    The add-on sets it at 10: nearest to the engine, so after the retries.
    """

    def __init__(self, crawler: Crawler) -> None:
        """Read which statuses are retried.

        Args:
            crawler: The crawler this middleware serves.
        """
        self._statuses = {int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")}
        self.queue: Scheduler | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)

    def process_response(self, request: Request, response: Response) -> Response:
        """Note a response that is an error of the server."""
        if self.queue is not None and response.status in self._statuses:
            self.queue.failed(request, f"status {response.status}")
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Note a failed download that no errback cares for."""
        is_refused = isinstance(exception, IgnoreRequest)
        if self.queue is not None and request.errback is None and not is_refused:
            self.queue.failed(request, f"{type(exception).__name__}: {exception}")


def attach(crawler: Crawler, queue: Scheduler, *, persist: bool) -> None:
    """Make the middlewares of a crawl work for its scheduler.

    Raises:
        ConfigurationError: BLOOMLOCK_PERSIST is set, and one of them is missing.
    """
    outputs = crawler.get_spider_middleware(BatchingMiddleware)
    downloads = crawler.get_downloader_middleware(DownloadMiddleware)
    if outputs is not None:
        outputs.checker = queue
    if downloads is not None:
        downloads.queue = queue
    if outputs is None or downloads is None:
        sentence = (
            "scrapy_ext.Scheduler runs without scrapy_ext.BatchingMiddleware in SPIDER_MIDDLEWARES "
            "or scrapy_ext.DownloadMiddleware in DOWNLOADER_MIDDLEWARES, so failed downloads count "
            "as done and a page is done before its requests that cannot be serialized are; the "
            'add-on sets both: ADDONS = {"scrapy_ext.BloomlockAddon": 500}'
        )
        if persist:
            raise ConfigurationError(f"BLOOMLOCK_PERSIST is set, and {sentence}")
        logger.warning("%s", sentence)


class _Bell:
    """Lets one task wait for another."""

    _waiting: Deferred[None] | None = None

    async def wait(self) -> None:
        self._waiting = Deferred()
        await maybe_deferred_to_future(self._waiting)

    def ring(self) -> None:
        """Let the other go on when this one waits."""
        if self._waiting is not None:
            call_later(0, self._waiting.callback, None)
            self._waiting = None


async def _in_batches(source: AsyncIterator[Any]) -> AsyncGenerator[list[Any]]:
    """Yield what a source yields in lists, each as soon as the source waits for something.

    A task of its own reads, and stops where the source does. What it raises comes after the
    outputs before it.
    """
    outputs: list[Any] = []
    errors: list[Exception] = []
    news, room = _Bell(), _Bell()
    is_over = False

    async def read() -> None:
        nonlocal is_over
        try:
            async for output in source:
                outputs.append(output)
                news.ring()
                if len(outputs) >= MOST_OUTPUTS:
                    await room.wait()
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
        finally:
            is_over = True
            news.ring()

    task = deferred_from_coro(read())
    # One that is stopped fails by that.
    task.addErrback(lambda _: None)
    try:
        while outputs or not is_over:
            if outputs:
                batch, outputs[:] = [*outputs], []
                room.ring()
                yield batch
            else:
                await news.wait()
        for error in errors:
            raise error
    finally:
        task.cancel()
