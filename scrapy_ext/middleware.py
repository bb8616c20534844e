"""The middlewares: one sees what callbacks yield, the other which downloads failed."""

from __future__ import annotations

import logging
from contextlib import aclosing
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_ext.delivered import Delivered
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
        self.delivered: Delivered | None = None
        crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what a callback yields, without the duplicates."""
        page = response.request
        if self.checker is None or page is None:
            async for output in result:
                yield output
            return
        is_handled = self.delivered is not None and _gives_nothing_back(page, self._crawler.spider)
        async with aclosing(_in_batches(result)) as batches:
            async for outputs in batches:
                is_handled = False
                requests = [output for output in outputs if isinstance(output, Request)]
                if self.delivered is not None and len(requests) < len(outputs):
                    self.delivered.gave_item(page)
                are_kept = iter(await self._check(self.checker, requests, page))
                for output in outputs:
                    if not isinstance(output, Request) or next(are_kept):
                        yield output
        if is_handled and self.delivered is not None:
            self.delivered.gave_item(page)

    async def _check(
        self, checker: Scheduler | BloomDupeFilter, requests: list[Request], page: Request
    ) -> list[bool]:
        if not requests:
            return []
        are_kept = await checker.check_many(requests, page)
        if self.delivered is not None:
            are_new = await self.delivered.are_new(requests)
            are_kept = [
                is_kept and is_new for is_kept, is_new in zip(are_kept, are_new, strict=True)
            ]
        for request, is_kept in zip(requests, are_kept, strict=True):
            if not is_kept:
                checker.log_duplicate(request)
                self._crawler.signals.send_catch_log(
                    signals.request_dropped, request=request, spider=self._crawler.spider
                )
        return are_kept

    async def _spider_closed(self) -> None:
        if self.delivered is not None:
            await self.delivered.close()


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
        if (
            self.queue is not None
            and request.errback is None
            and not isinstance(exception, IgnoreRequest)
        ):
            self.queue.failed(request, f"{type(exception).__name__}: {exception}")


def attach(crawler: Crawler, queue: Scheduler, delivered: Delivered | None = None) -> None:
    """Make the middlewares of a crawl work for its scheduler.

    Raises:
        ConfigurationError: BLOOMLOCK_PERSIST is set, and one of them is missing.
    """
    outputs = crawler.get_spider_middleware(BatchingMiddleware)
    downloads = crawler.get_downloader_middleware(DownloadMiddleware)
    if outputs is None or downloads is None:
        sentence = (
            "scrapy_ext.Scheduler runs without scrapy_ext.BatchingMiddleware in SPIDER_MIDDLEWARES "
            "or scrapy_ext.DownloadMiddleware in DOWNLOADER_MIDDLEWARES, so failed downloads count "
            "as done and a page is done before its requests that cannot be serialized are; the "
            'add-on sets both: ADDONS = {"scrapy_ext.BloomlockAddon": 500}'
        )
        if delivered is not None:
            raise ConfigurationError(f"BLOOMLOCK_PERSIST is set, and {sentence}")
        logger.warning("%s", sentence)
    if outputs is not None:
        outputs.checker, outputs.delivered = queue, delivered
    if downloads is not None:
        downloads.queue = queue
    if delivered is not None:
        queue.on_done(delivered.done)


def _gives_nothing_back(page: Request, spider: Spider | None) -> bool:
    """Return whether the callback of a page is no generator: without outputs it did all itself.

    A generator without outputs may be that of a list which is empty today.
    """
    callback = page.callback or getattr(spider, "parse", None)
    return not (isgeneratorfunction(callback) or isasyncgenfunction(callback))


async def _in_batches(source: AsyncIterator[Any]) -> AsyncGenerator[list[Any]]:
    """Yield what a source yields in lists, each as soon as the source waits for something.

    What it raises comes after the outputs before it.
    """
    reader = _Reader(source)
    try:
        while outputs := await reader.take():
            yield outputs
    finally:
        reader.stop()


class _Reader:
    """Reads a source in a task of its own, which stops where the source does."""

    def __init__(self, source: AsyncIterator[Any]) -> None:
        self._outputs: list[Any] = []
        self._is_over = False
        self._error: Exception | None = None
        # What each side waits for, if it does.
        self._news: Deferred[None] | None = None
        self._room: Deferred[None] | None = None
        self._task = deferred_from_coro(self._read(source))
        # One that is stopped fails by that.
        self._task.addErrback(lambda _: None)

    async def take(self) -> list[Any]:
        """Return what was read, at least one output; an empty list at the end."""
        if not (self._outputs or self._is_over):
            self._news = Deferred()
            await maybe_deferred_to_future(self._news)
        outputs, self._outputs = self._outputs, []
        if self._room is not None:
            room, self._room = self._room, None
            room.callback(None)
        if not outputs and self._error is not None:
            raise self._error
        return outputs

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()

    async def _read(self, source: AsyncIterator[Any]) -> None:
        try:
            async for output in source:
                self._outputs.append(output)
                self._tell()
                if len(self._outputs) >= MOST_OUTPUTS:
                    self._room = Deferred()
                    await maybe_deferred_to_future(self._room)
        except Exception as error:  # noqa: BLE001 - `take` raises it
            self._error = error
        finally:
            self._is_over = True
            self._tell()

    def _tell(self) -> None:
        """Wake `take` when this task waits, and not at the first output."""
        if self._news is not None:
            news, self._news = self._news, None
            call_later(0, _fire, news)


def _fire(news: Deferred[None]) -> None:
    if not news.called:
        news.callback(None)
