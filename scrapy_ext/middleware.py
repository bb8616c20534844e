"""The spider middleware that checks all requests of a page in one round trip."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_ext.answers import Verdict
from scrapy_ext.dupefilter import expect_batches, filter_of
from scrapy_ext.outcomes import OutcomeMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_ext.answers import Check

logger = logging.getLogger("bloomlock.scrapy")

REQUESTS_PER_CHUNK = 1000
"""Requests that are read before they are checked: a round trip of about 4 ms."""

START_REQUESTS_PER_CHUNK = 100
"""Requests of `start()` that are read before: it may look at the engine's load before each."""

ITEMS_PER_CHUNK = 100
"""Items, of any size, that are held back behind unchecked requests."""

LONGEST_SCHEME = len("https://")


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
        expect_batches(crawler)
        self._offsite: OffsiteMiddleware | None = None
        self._knows_offsite = False
        self._crawl: Callable[[Request], None] | None = None
        self._knows_crawl = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware for a crawler."""
        return cls(crawler)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what a callback yields, but hand requests to the engine where that is the same."""
        del response
        crawl = self._find_crawl() if filter_of(self._crawler) is not None else None
        page = _Page(self._crawler, self._find_offsite(), may_drop=crawl is not None)
        async for chunk in in_chunks(result, REQUESTS_PER_CHUNK, page.note):
            await page.check(leave=crawl is None)
            has_items = False
            for output in chunk:
                if crawl is None or not isinstance(output, Request):
                    has_items = True
                    yield output
                    continue
                if has_items:
                    # The engine begins with the items first, as they come first.
                    await asyncio.sleep(0)
                    has_items = False
                page.schedule(output, crawl)
        page.end()

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what `start()` yields, but hand requests that were checked to the engine.

        An engine that stops gives up what is left of `start()`, and what was recorded has to be
        scheduled.
        """
        page = _Page(self._crawler, self._find_offsite())
        async for chunk in in_chunks(start, START_REQUESTS_PER_CHUNK, page.note):
            is_scheduled = page.has_checks
            if is_scheduled:
                slot = getattr(self._crawler.engine, "_slot", None)
                if slot is None or slot.closing is not None:
                    return
                requests = [output for output in chunk if isinstance(output, Request)]
                await self._schedule(page, requests, slot)
            for output in chunk:
                if not (is_scheduled and isinstance(output, Request)):
                    yield output

    async def _schedule(self, page: _Page, requests: list[Request], slot: Any) -> None:
        """Check requests of `start()` and schedule them; who awaits this may be cancelled.

        The engine's slot counts a request as in progress until then. So the engine, which closes
        the scheduler when none is, waits for it. (Scrapy has no public way to ask it for that.)
        """
        engine = self._crawler.engine
        hold = Request("data:,")
        slot.add_request(hold)

        async def schedule() -> None:
            try:
                await page.check(leave=False)
                for request in requests:
                    page.schedule(request, engine.crawl)
            finally:
                slot.remove_request(hold)

        done: Deferred[None] = Deferred()
        deferred_from_coro(schedule()).chainDeferred(done)
        await maybe_deferred_to_future(done)

    def _find_crawl(self) -> Callable[[Request], None] | None:
        """Return what the engine does with a request that a callback yields; None: not known.

        It has a queue for the outputs of a page and a hundred tasks that take them from there. All
        of these wait while a page is checked, and each output would wake one.
        """
        if not self._knows_crawl:
            self._knows_crawl = True
            engine = self._crawler.engine
            if engine is not None and is_asyncio_available() and self._is_last(engine):
                self._crawl = engine.crawl
        return self._crawl

    def _is_last(self, engine: Any) -> bool:
        """Return whether no other middleware gets the requests after this one."""
        for other in engine.scraper.spidermw.middlewares:
            if other is self:
                return True
            changes = ("process_spider_output", "process_spider_output_async")
            if not isinstance(other, OutcomeMiddleware) and any(
                map(partial(hasattr, other), changes)
            ):
                break
        return False

    def _find_offsite(self) -> OffsiteMiddleware | None:
        if not self._knows_offsite:
            self._knows_offsite = True
            self._offsite = self._crawler.get_downloader_middleware(OffsiteMiddleware)
        return self._offsite


class _Page:
    """What is to be checked of the requests that one callback or `start()` yields.

    Args:
        crawler: The crawler.
        offsite: Its middleware.
        may_drop: Whether duplicates may be dropped here where nothing would notice them in the
            engine.
    """

    def __init__(
        self, crawler: Crawler, offsite: OffsiteMiddleware | None, *, may_drop: bool = False
    ) -> None:
        self._dupefilter = filter_of(crawler)
        self._spider = crawler.spider
        self._offsite = offsite
        self._by_host = (
            offsite is not None and type(offsite).should_follow is OffsiteMiddleware.should_follow
        )
        self._checks: list[Check] = []
        self._given: Iterator[tuple[Check, Verdict]] = iter(())
        self._next: tuple[Check, Verdict] | None = None
        # Whether requests to a host are ignored, by the URL up to its path.
        self._is_ignored: dict[str, bool] = {}
        # Most links are duplicates. What is dropped as it is read does not wait, with all that it
        # refers to, for the end of the page and for the server.
        self._drops = (
            may_drop and self._dupefilter is not None and self._dupefilter.may_drop(offsite)
        )

    @property
    def has_checks(self) -> bool:
        """Whether a request is to be checked."""
        return bool(self._checks)

    def note(self, request: Request) -> bool:
        """Note what is to be checked of a request; nothing if the engine will ignore it.

        Returns:
            Whether it is dropped: it is not to be scheduled then.
        """
        if self._dupefilter is None or self._is_offsite(request):
            return False
        check = self._dupefilter.prepare(request)
        if check is None:
            return False
        if self._drops and self._dupefilter.drop_if_seen(check):
            return True
        self._checks.append(check)
        return False

    async def check(self, *, leave: bool) -> None:
        """Check what was noted since the last time.

        Args:
            leave: Whether the requests are scheduled some time, and not by `schedule`.
        """
        checks, self._checks = self._checks, []
        self._is_ignored.clear()
        if self._dupefilter is None or not checks:
            return
        checked = zip(checks, await self._dupefilter.check_many(checks), strict=False)
        if not leave:
            self._given = checked
            self._next = next(checked, None)
            return
        for check, verdict in checked:
            self._dupefilter.leave(check, verdict)

    def schedule(self, request: Request, crawl: Callable[[Request], None]) -> None:
        """Schedule a request with its verdict, if it was checked. Never raises.

        The requests after it are recorded, so each of them has to be scheduled too.
        """
        given = self._next
        try:
            if given is not None and given[0].request is request and self._dupefilter is not None:
                self._next = next(self._given, None)
                check, verdict = given
                if self._drops and verdict is Verdict.SEEN and check.is_filtered:
                    self._dupefilter.drop(request)
                    return
                self._dupefilter.give(given)
            crawl(request)
        except Exception:
            logger.exception("%s could not be scheduled.", request)

    def end(self) -> None:
        """Count what was dropped."""
        if self._drops and self._dupefilter is not None:
            self._dupefilter.count_dropped()

    def _is_offsite(self, request: Request) -> bool:
        """Return whether the engine will ignore a request, which then must not be recorded."""
        offsite, spider = self._offsite, self._spider
        if offsite is None or spider is None:
            return False
        url = request.url
        path = url.find("/", LONGEST_SCHEME)
        host = url if path < 0 else url[:path]
        # A page links to few hosts.
        is_ignored = self._is_ignored.get(host) if self._by_host else None
        if is_ignored is False or request.dont_filter or request.meta.get("allow_offsite"):
            return False
        if is_ignored is None:
            is_ignored = not offsite.should_follow(request, spider)
            self._is_ignored[host] = is_ignored
        return is_ignored


async def in_chunks(
    source: AsyncIterator[Any], most: int, note: Callable[[Request], bool] = lambda _: False
) -> AsyncIterator[list[Any]]:
    """Yield what a source yields in lists, without waiting for it while one is not empty.

    What the source raises comes after the outputs before it.

    Args:
        source: What a callback or `start()` yields.
        most: Requests in a list, at most.
        note: Called with each request as soon as it is there, and returns whether to leave it out.
            (A parser keeps its last 128 URLs, fewer than a page may have.)
    """
    step: _Step | None = None
    is_over = False
    while not is_over:
        chunk: list[Any] = []
        requests = 0
        try:
            while requests < most and len(chunk) - requests < ITEMS_PER_CHUNK:
                output, step = _begin(source) if step is None else (None, step)
                if step is not None:
                    if chunk:
                        break
                    output, step = await step, None
                if isinstance(output, Request) and note(output):
                    continue
                requests += isinstance(output, Request)
                chunk.append(output)
        except StopAsyncIteration:
            is_over = True
        except Exception:
            # (A local that kept it would make a cycle with this frame, and all requests with it.)
            if chunk:
                yield chunk
            raise
        if chunk:
            yield chunk


def _begin(source: AsyncIterator[Any]) -> tuple[Any, _Step | None]:
    """Return the next output of a source, or the rest of the way to it if the source waits."""
    steps: Any = source.__anext__().__await__()
    try:
        return None, _Step(steps, steps.send(None))
    except StopIteration as done:
        return done.value, None


class _Step:
    """The rest of the way to an output of a source that waits for something.

    The source runs in the task that awaits this, as it would without this middleware, so that it
    can be cancelled there.

    Args:
        steps: The way.
        awaited: What it waits for.
    """

    def __init__(self, steps: Any, awaited: Any) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        """Let the source go on to its output, and return it."""
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
            return done.value
