"""The spider middleware that checks all requests of a page in one round trip."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_ext.dupefilter import filter_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Generator

    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger("bloomlock.scrapy")

REQUESTS_PER_CHUNK = 1000
"""Requests that are read before they are checked: a round trip of about 1.5 ms."""

START_REQUESTS_PER_CHUNK = 100
"""The same for `start()`, which may look at the engine's load before each request."""

ITEMS_PER_CHUNK = 100
"""Items, of any size, that are held back behind unchecked requests."""


class BatchingMiddleware:
    """Checks the requests that a callback or `start()` yields in one awaited round trip.

    Put it nearest to the engine, so that what other middlewares drop is not recorded:
    `SPIDER_MIDDLEWARES = {"scrapy_ext.middleware.BatchingMiddleware": 10}`. Items and requests keep
    their order. A chunk ends after 1,000 requests (100 of `start()`) or 100 items, and where
    the callback makes the crawl wait. `BloomDupeFilter` takes the verdicts; with any other
    duplicates filter nothing is done.
    """

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler.

        Args:
            crawler: The crawler this middleware serves.
        """
        self._crawler = crawler
        self._offsite: OffsiteMiddleware | None = None
        self._knows_offsite = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what a callback yields, its requests checked."""
        del response
        async for chunk in in_chunks(result, REQUESTS_PER_CHUNK):
            await self._check(chunk)
            for output in chunk:
                yield output

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what `start()` yields, its requests checked.

        The engine gives up what is left of `start()` when it stops, and what was recorded has to be
        scheduled. So of a chunk only the last request is yielded; the others are handed to the
        engine before it.
        """
        async for chunk in in_chunks(start, START_REQUESTS_PER_CHUNK):
            recorded = await self._check_to_the_end(chunk)
            if recorded:
                *others, last = _requests_of(chunk)
                self._crawl(others)
                yield last
            for output in chunk:
                if not (recorded and isinstance(output, Request)):
                    yield output

    async def _check_to_the_end(self, chunk: list[Any]) -> bool:
        """Check a chunk; if this is cancelled meanwhile, what was recorded is scheduled still."""
        checking = deferred_from_coro(self._check(chunk))
        checked: Deferred[bool] = Deferred()

        def forward(recorded: bool) -> bool:
            if not checked.called:
                checked.callback(recorded)
            return recorded

        checking.addCallback(forward)
        try:
            return await maybe_deferred_to_future(checked)
        except BaseException:
            checking.addCallback(
                lambda recorded: self._crawl(_requests_of(chunk)) if recorded else None
            )
            raise

    def _crawl(self, requests: list[Request]) -> None:
        """Hand requests to the engine."""
        engine = self._crawler.engine
        if engine is None or engine.spider is None:
            if requests:
                logger.warning(
                    "The crawl ended while %d requests of start() were checked; they count as seen "
                    "and are not scheduled.",
                    len(requests),
                )
            return
        for request in requests:
            engine.crawl(request)

    async def _check(self, chunk: list[Any]) -> bool:
        """Check the requests of a chunk; return whether any was recorded."""
        dupefilter = filter_of(self._crawler)
        if dupefilter is None:
            return False
        return await dupefilter.check_many(
            [request for request in _requests_of(chunk) if not self._is_offsite(request)]
        )

    def _is_offsite(self, request: Request) -> bool:
        """Return whether the engine will ignore a request, which then must not be recorded."""
        if not self._knows_offsite:
            self._knows_offsite = True
            self._offsite = self._crawler.get_downloader_middleware(OffsiteMiddleware)
        spider = self._crawler.spider
        if self._offsite is None or spider is None:
            return False
        return not (
            request.dont_filter
            or request.meta.get("allow_offsite")
            or self._offsite.should_follow(request, spider)
        )


def _requests_of(chunk: list[Any]) -> list[Request]:
    return [output for output in chunk if isinstance(output, Request)]


async def in_chunks(source: AsyncIterator[Any], most: int) -> AsyncIterator[list[Any]]:
    """Yield what a source yields in lists, without waiting for it while one is not empty.

    What the source raises comes after the outputs before it.

    Args:
        source: What a callback or `start()` yields.
        most: Requests in a list, at most.
    """
    step: _Step | None = None
    while True:
        chunk: list[Any] = []
        requests = 0
        failure: Exception | None = None
        try:
            while requests < most and len(chunk) - requests < ITEMS_PER_CHUNK:
                step = step or _Step(source)
                if not step.is_done():
                    if chunk:
                        break
                    await step
                output, step = step.output, None
                chunk.append(output)
                requests += isinstance(output, Request)
        except Exception as error:  # noqa: BLE001 - raised again
            failure = error
        if chunk:
            yield chunk
        if isinstance(failure, StopAsyncIteration):
            return
        if failure is not None:
            raise failure


class _Step:
    """One output of a source: goes as far as it comes without waiting, and on when awaited.

    The source runs in the task that awaits this, as it would without this middleware, so that it
    can be cancelled there.
    """

    def __init__(self, source: AsyncIterator[Any]) -> None:
        awaitable: Awaitable[Any] = source.__anext__()
        self._steps: Any = awaitable.__await__()
        self._awaited: Any = None
        self._is_waiting = False
        self.output: Any = None

    def is_done(self) -> bool:
        """Return whether the output is there; False where the source waits for something."""
        if self._is_waiting:
            return False
        try:
            self._awaited = self._steps.send(None)
        except StopIteration as done:
            self.output = done.value
            return True
        self._is_waiting = True
        return False

    def __await__(self) -> Generator[Any, Any, None]:
        """Let the source go on to its output."""
        try:
            while True:
                try:
                    sent = yield self._awaited
                except GeneratorExit:
                    self._steps.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - the source's, as a cancellation is
                    self._awaited = self._steps.throw(error)
                else:
                    self._awaited = self._steps.send(sent)
        except StopIteration as done:
            self.output = done.value
