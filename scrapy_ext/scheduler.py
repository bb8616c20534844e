"""The scheduler that processes share. The engine never waits for the server.

A request stays on the server until its callback and items are done, and what it made is queued.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from scrapy import signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as LocalScheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import deferred_from_coro

from bloomlock.errors import CapacityError, ConfigurationError
from scrapy_ext import engine
from scrapy_ext.crawl_state import Crawl
from scrapy_ext.engine import run_in_thread
from scrapy_ext.exchange import PUSHES_PER_TRIP, Exchange
from scrapy_ext.middleware import attach
from scrapy_ext.migration import OtherQueue
from scrapy_ext.requests import Page, Pages
from scrapy_ext.settings import (
    check_jobdir,
    log_begin,
    only_looks,
    opening,
    overwritten_file,
    pace_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from scrapy_ext.crawl_state import Answer

logger = logging.getLogger("bloomlock.scrapy")


class Scheduler(BaseScheduler):
    """Shares a crawl with all processes of the spider; no request is lost with one of them.

    The add-on sets it. It needs the two middlewares that the add-on sets too. DUPEFILTER_CLASS is
    not used beside it.
    """

    exchange: Exchange
    pages: Pages

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler; its settings are read by `open`."""
        self._crawler = crawler
        self._count: Any = crawler.stats.inc_value
        self._log = RFPDupeFilter(debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        # Requests that cannot be serialized stand first.
        self._ready: deque[Page] = deque()
        self._active_at = time.monotonic()
        self._is_open = self._is_lost = self._has_ended = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self | LocalScheduler:  # type: ignore[override]
        """Make the scheduler; for commands that only look at pages, one that shares nothing."""
        if only_looks(crawler):
            local = LocalScheduler.from_crawler(crawler)
            local.df = RFPDupeFilter.from_crawler(crawler)
            return local
        return cls(crawler)

    # Called by the engine.

    def open(self, spider: Spider) -> None:
        """Begin the crawl, join it, or go on with it.

        Raises:
            BloomlockError: A setting is not usable, the crawl is for another spider, or the server
                cannot be used. Scrapy then ends with exit status 1.
        """
        crawler = self._crawler
        self._spider = spider
        with opening(crawler, "queue") as (settings, client):
            self._settings, self._client = settings, client
            engine.check(crawler)
            check_jobdir(crawler)
            attach(crawler, self)
            self.pages = Pages(crawler, self._end, use_pickle=settings.pickle)
            pace = pace_of(crawler, settings)
            self._crawl = Crawl(client, settings, pace)
            begun = self._crawl.begin(overwrites=overwritten_file(crawler))
            self.exchange = Exchange(self._crawl, settings.lease, self)
            self._other_queue = OtherQueue(crawler.settings, client, spider.name)
            try:
                self._come_in(begun.what)
            except Exception:
                self._crawl.close(finished=False)
                raise
        log_begin(crawler, settings.name, begun, pace["delay_ms"])
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)
        crawler.signals.connect(self._raised, signal=signals.spider_error)
        crawler.signals.connect(self._raised, signal=signals.item_error)
        self._is_open = True
        self.exchange.start()

    def _come_in(self, what: str) -> None:
        moved = self._other_queue.take_all() if what != "joined" else ()
        failed = self._crawl.failed_before() if what == "begun" else ()
        for entries in chain([()], moved, failed):
            self.exchange.now([self.pages.again(entry) for entry in entries])
        if users := self._other_queue.users():
            raise ConfigurationError(users)

    def enqueue_request(self, request: Request) -> bool:
        """Take a request, to be tested, added and queued in the next round trip.

        False if it is known to be a duplicate. One that the server says to be a duplicate is logged
        and counted when the answer comes, and `request_dropped` is sent then.
        """
        self._count("bloomlock/checked")
        if self.pages.is_known(request):
            self.log_duplicate(request)
            return False
        self._is_active()
        self.exchange.send(self.pages.of(request))
        return True

    def next_request(self) -> Request | None:
        """Return a request that was taken from the queue; None while this process has none."""
        self._collect_done()
        if not self._ready:
            self.exchange.want()
            return None
        page = self._ready.popleft()
        if page.request in self.pages:
            # A callback has yielded it twice, or yields its own. Two in progress are two objects.
            page.request = page.request.copy()
        request: Request = page.request
        self.pages.begin(page)
        self._count("scheduler/dequeued")
        if request.meta.get("is_start_request"):
            # A request that copies this `meta` is no start request.
            request.meta["bloomlock_begun"] = True
        return request

    def has_pending_requests(self) -> bool:
        """Return whether anything waits here or in the queue, or is on its way."""
        self._collect_done()
        return len(self) > 0 and not self._is_lost

    def __len__(self) -> int:
        """Return how many requests wait, as far as is known."""
        return self.exchange.answer.waiting + len(self.exchange) + len(self._ready)

    def close(self, reason: str) -> Deferred[None]:
        """Send what waits, put back what was not begun, and leave the crawl."""
        return deferred_from_coro(self._finish(reason))

    # Called by the middlewares and signals.

    async def check_many(
        self, requests: list[Request], page: Request, *, has_items: bool = False
    ) -> list[bool]:
        """Note the requests of a callback; return for each whether the engine gets it."""
        self.pages.note_made(requests, page, has_items=has_items)
        are_kept = [not self.pages.is_known(request) for request in requests]
        delivered = self._crawl.delivered
        if delivered is None or not requests:
            return are_kept
        keys = [self.pages.fingerprint(request) for request in requests]
        # The server does not answer: the pages are fetched, which loses nothing.
        with suppress(Exception):
            found = await run_in_thread(delivered.exists_many, keys)
            for at, is_there in enumerate(found):
                if is_there and are_kept[at] and self.pages.mode_of(requests[at]) == "n":
                    are_kept[at] = False
                    self._count("bloomlock/delivered_before")
        return are_kept

    def log_duplicate(self, request: Request) -> None:
        self._log.log(request, self._spider)

    def _raised(self, failure: Failure, response: Any) -> None:
        # Start items have no response.
        if (request := getattr(response, "request", None)) is not None:
            self.pages.fail(request, _why(failure.value))

    def _spider_idle(self) -> None:
        """Keep the spider open until the crawl has ended: others may have requests for it."""
        if self._is_lost:
            raise DontCloseSpider  # the engine closes it with our reason
        exchange = self.exchange
        if not exchange.is_idle:
            # Tell the others at once.
            exchange.is_idle = True
            exchange.look()
        if exchange.answer.state == "running":
            raise DontCloseSpider
        if self._has_ended and not exchange.stays:
            # Another handler keeps it open.
            exchange.stays = True
            exchange.look()
        self._has_ended = True

    def _is_active(self) -> None:
        self._active_at = time.monotonic()
        self.exchange.is_idle = self._has_ended = False

    def _collect_done(self) -> None:
        self.pages.collect(engine.in_progress(self._crawler))

    def _end(self, page: Page) -> None:
        request = page.request
        if self._crawl.delivered is not None and page.gave_item and page.error is None:
            # A link leads to the page that redirected here.
            earlier = [request.replace(url=url) for url in request.meta.get("redirect_urls", ())]
            page.records = [*map(self.pages.fingerprint, (request, *earlier))]
        if page.id and page.error is not None:
            self._count("bloomlock/failed")
        # A request that stayed in this process gets into the filter when it is done.
        page.mode = "r" if page.mode == "l" and page.error is None else "a"
        if page.id or page.records or page.mode == "r":
            self.exchange.send(page)

    # Called by the exchange.

    def room(self) -> tuple[int, dict[str, int]]:
        """Return how many requests the engine can begin, and how many each host has here.

        Requests beyond that stay in the queue, which has the better order.
        """
        running = self._crawler.engine
        if running is None or running.paused or running.needs_backout():
            return 0, {}
        downloader = running.downloader
        busy = Counter(str(downloader.get_slot_key(request)) for request in downloader.active)
        busy.update(page.host for page in self._ready)
        return max((downloader.total_concurrency or PUSHES_PER_TRIP) - busy.total(), 0), busy

    def is_at_rest(self) -> bool:
        # scrapy-redis keeps a spider open for this time.
        least = self._crawler.settings.getfloat("SCHEDULER_IDLE_BEFORE_CLOSE")
        is_long = time.monotonic() - self._active_at >= least
        return is_long and not (self._ready or self.pages)

    def not_answered(self, error: Exception, *, is_first: bool) -> None:
        self._count("bloomlock/errors")
        if is_first:
            self._count("bloomlock/outages")
            away = "The queue of the crawl %r cannot be used (%s); the crawl waits for it."
            logger.error(away, self._settings.name, _why(error))
        if isinstance(error, CapacityError):
            engine.close_spider(self._crawler, "bloomlock_full")
        elif self._settings.on_outage == "close":
            engine.close_spider(self._crawler, "bloomlock_outage")

    def take(self, pushes: Sequence[Page], answer: Answer) -> None:
        self._count("bloomlock/trips")
        if answer.state == "gone":
            self._lose()
            return
        for page, is_wanted in zip(pushes, answer.pushed, strict=True):
            if page.request is not None and not page.is_over:
                self._pushed(page, is_wanted=is_wanted)
        for identity, host, entry in answer.got:
            page = Page(None, host, id=identity)
            try:
                page.request = self.pages.codec.decode(entry)
                self._ready.append(page)
            # The entry may be from another spider, or another version of this one.
            except Exception as error:
                page.error, page.is_over = _why(error), True
                name = self._settings.name
                logger.exception("A request in the queue of %r cannot be read.", name)
                self.pages.settle(page)
        if answer.got:
            self._is_active()
        if answer.recovered:
            self._count("bloomlock/recovered", answer.recovered)
            again = "%d requests of a process that ended, or did not renew its lease, wait again."
            logger.info(again, answer.recovered)
        is_at_end = not (answer.waiting or self.exchange.is_idle)
        if answer.got or pushes or is_at_end or answer.state != "running":
            engine.wake(self._crawler)

    def _pushed(self, page: Page, *, is_wanted: bool) -> None:
        if page.mode in "nrl":
            self.pages.known.add(page.fingerprint)
        if is_wanted:
            self._count("scheduler/enqueued")
            if not page.entry:
                self._ready.appendleft(page)
            return
        self.log_duplicate(page.request)
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=page.request, spider=self._spider
        )
        if page.parent is not None:
            self.pages.child_ended(page.parent)

    def _lose(self) -> None:
        """Close the spider: the server has lost the crawl, or has begun another."""
        if self.exchange.is_over or self._has_ended:
            return
        self._is_lost = True
        self.exchange.stop()
        logger.error(
            "The crawl %r, or its filter, is gone from the server; this process stops, as it does "
            "not know any more what was fetched.",
            self._settings.name,
        )
        engine.close_spider(self._crawler, "bloomlock_lost")

    async def _finish(self, reason: str) -> None:
        if not self._is_open:
            return  # `open` has failed, and said why
        self.exchange.stop()
        if not self._is_lost:
            await self.exchange.finish(self._collect_done)
            await run_in_thread(engine.note_fill, self._crawler, self._crawl.shared)
        name = self._settings.name
        try:
            if users := await run_in_thread(self._other_queue.users):
                logger.error("%s", users)
            left = await run_in_thread(self._crawl.close, finished=reason == "finished")
        # An error from here would hide how the crawl ended.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "The crawl %r was not left in order, so what this process has not done waits for "
                "%g s: %s",
                *(name, self._settings.lease, _why(error)),
            )
        else:
            if left.failed:
                kept = "%d requests of the crawl %r failed and are kept: `bloomlock failed %s`"
                logger.warning(kept, left.failed, name, name)
            if left.waiting and not left.is_over:
                waits = "%d requests of the crawl %r wait for the next start."
                logger.info(waits, left.waiting, name)
        self._client.close()


def _why(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
