"""The scheduler that processes share: requests are tested, added and queued in one step.

The engine never waits for the server. What it enqueues, what it is done with and what it wants is
collected, and goes out in one round trip beside the reactor. A request that was taken stays on the
server until its callback and its items are done; what its callback made is sent no later.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from scrapy import signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as LocalScheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import deferred_from_coro

from bloomlock.errors import CapacityError
from scrapy_ext.connection import opening
from scrapy_ext.crawl_state import Crawl
from scrapy_ext.delivered import Delivered
from scrapy_ext.engine import EngineView
from scrapy_ext.fingerprints import Fingerprints, RecentFingerprints
from scrapy_ext.middleware import attach
from scrapy_ext.migration import queue_of_scrapy_redis
from scrapy_ext.pages import OpenPage, OpenPages
from scrapy_ext.queue import Mode, Push, is_start_request
from scrapy_ext.requests import RequestCodec, UnserializableError
from scrapy_ext.settings import only_looks, warn_of_unknown
from scrapy_ext.start import (
    attributes_of,
    check_jobdir,
    log_begin,
    overwritten_file,
    pace_of,
)
from scrapy_ext.stats import FilterStats
from scrapy_ext.threads import run_in_thread
from scrapy_ext.trips import Trips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from scrapy_ext.queue import Answer, Step, Taken

logger = logging.getLogger("bloomlock.scrapy")

MOST_AT_ONCE = 256
"""Requests that are taken at once where CONCURRENT_REQUESTS has no limit."""


class Scheduler(BaseScheduler):
    """Shares a crawl with all processes of the spider; no request is lost with one of them.

    The add-on sets it. It needs the two middlewares that the add-on sets too. DUPEFILTER_CLASS is
    not used beside it.
    """

    _trips: Trips

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler; its settings are read by `open`.

        Args:
            crawler: The crawler this scheduler serves.
        """
        self._crawler = crawler
        self._engine = EngineView(crawler)
        self._fingerprints = Fingerprints(crawler)
        self._stats = FilterStats(crawler)
        self._log = RFPDupeFilter(debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        self._pages = OpenPages(self._end)
        self._ready: deque[tuple[OpenPage, Request]] = deque()
        self._local: deque[tuple[OpenPage, Request]] = deque()
        self._known = RecentFingerprints()
        self._active_at = time.monotonic()
        self._is_closing = self._is_lost = self._has_ended = False
        self._logged: set[str] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self | LocalScheduler:  # type: ignore[override]
        """Make the scheduler; for commands that only look at pages, one that shares nothing."""
        if only_looks(crawler):
            local = LocalScheduler.from_crawler(crawler)
            local.df = RFPDupeFilter.from_crawler(crawler)
            return local
        return cls(crawler)

    def open(self, spider: Spider) -> None:
        """Begin the crawl, join it, or go on with it.

        Args:
            spider: The spider.

        Raises:
            BloomlockError: A setting is not usable, the crawl is for another spider, or the server
                cannot be used. Scrapy then ends with exit status 1.
        """
        crawler = self._crawler
        self._spider = spider
        warn_of_unknown(crawler.settings)
        with opening(crawler, "queue") as (settings, client):
            self._settings, self._client = settings, client
            self._engine.check()
            check_jobdir(crawler)
            attach(crawler, self, Delivered.open(crawler, settings) if settings.persist else None)
            self._codec = RequestCodec(spider, use_pickle=settings.pickle, on_pickled=self._pickled)
            attributes = None if settings.is_named else attributes_of(spider)
            self._pace = pace_of(crawler, settings)
            self._crawl = Crawl(client, settings, self._pace, attributes)
            begun = self._crawl.begin(overwrites=overwritten_file(crawler))
            self._trips = Trips(self._crawl, settings.lease, self)
            self._trips.exchange()
            if begun.what != "joined":
                self._put_back(queue_of_scrapy_redis(crawler.settings, client, spider.name))
            if begun.what == "begun":
                self._put_back(self._crawl.failed_before())
        log_begin(crawler, self._settings, begun)
        connect = crawler.signals.connect
        connect(self._spider_idle, signal=signals.spider_idle)
        connect(self._raised, signal=signals.spider_error)
        connect(self._raised, signal=signals.item_error)
        self._stats.watch(self._crawl.shared)
        self._trips.start()

    def _put_back(self, batches: Iterable[list[bytes]]) -> None:
        """Queue entries of an earlier queue, whatever the filter has."""
        for entries in batches:
            self._trips.exchange(pushes=[self._push_again(entry) for entry in entries])

    def _push_again(self, entry: bytes) -> Push:
        try:
            request = self._codec.decode(entry)
            mode: Mode = "a" if request.dont_filter else "r"
            return self._push_of(request, self._fingerprints.of(request), mode)
        # It may be of other code.
        except Exception as error:  # noqa: BLE001
            return self._failed_push(entry, _why(error))

    # What Scrapy asks of a scheduler.

    def enqueue_request(self, request: Request) -> bool:
        """Take a request, to be tested, added and queued in the next round trip.

        Args:
            request: The request.

        Returns:
            False if it is known to be a duplicate. One that the server says to be a duplicate is
            logged and counted when the answer comes, and `request_dropped` is sent then.
        """
        fingerprint = self._fingerprints.of(request)
        mode = self._mode_of(request)
        self._stats.count("checked")
        if mode == "n" and fingerprint in self._known:
            self.log_duplicate(request)
            return False
        self._is_active()
        self._trips.send(self._push_of(request, fingerprint, mode))
        return True

    def next_request(self) -> Request | None:
        """Return a request that was taken from the queue; None while there is none at hand."""
        self._collect_done()
        if self._local:
            page, request = self._local.pop()
        elif self._ready:
            page, request = self._ready.popleft()
        else:
            self._trips.want()
            return None
        self._pages.add(page, request)
        self._count("scheduler/dequeued")
        self._count(f"scheduler/dequeued/{'redis' if page.id else 'memory'}")
        if request.meta.get("is_start_request"):
            # What is made of it by an errback, or by a callback with its `meta`, is another one.
            request.meta["bloomlock_begun"] = True
        return request

    def has_pending_requests(self) -> bool:
        """Return whether anything waits here or in the queue, or is on its way."""
        self._collect_done()
        return len(self) > 0 and not self._is_lost

    def __len__(self) -> int:
        """Return how many requests wait, as far as is known; sends nothing."""
        here = len(self._trips) + len(self._ready) + len(self._local)
        return self._trips.answer.waiting + here

    def close(self, reason: str) -> Deferred[None]:
        """Send what waits, put back what was not begun, and leave the crawl.

        Args:
            reason: Why the spider closed.
        """
        self._is_closing = True
        self._stats.stop()
        return deferred_from_coro(self._finish(reason))

    # What the middlewares and spiders say.

    async def check_many(self, requests: list[Request], page: Request) -> list[bool]:
        """Note what a callback made; return for each request whether the engine gets it.

        Args:
            requests: What the callback yields.
            page: The request whose callback it is.
        """
        self._pages.note_made(requests, page)
        return [
            self._mode_of(request) != "n" or self._fingerprints.of(request) not in self._known
            for request in requests
        ]

    def log_duplicate(self, request: Request) -> None:
        """Count and log a duplicate, as Scrapy's own filter does."""
        self._log.log(request, self._spider)

    def failed(self, request: Request, why: str) -> None:
        """Keep a request that failed; it is not done.

        Args:
            request: The request, as `next_request` returned it.
            why: The error.
        """
        self._pages.fail(request, why)

    def failed_entry(self, data: bytes, why: str) -> None:
        """Keep among the failed what cannot become a request."""
        self._trips.send(self._failed_push(data, why))

    def _failed_push(self, data: bytes, why: str) -> Push:
        self._count("bloomlock/failed")
        return Push(None, b"-", "f", why, data)

    def on_done(self, call: Callable[[Request], None]) -> None:
        """Call with each request that is done and did not fail."""
        self._pages.when_done.append(call)

    def when_sent(self, call: Callable[[], None]) -> None:
        """Call when everything enqueued before is in the queue of the server."""
        self._trips.send(call)

    def stay_open(self) -> None:
        """Say that the spider waits for more by itself: the crawl does not end before it does."""
        self._trips.stays = True

    def _raised(self, failure: Failure, response: Any) -> None:
        """Note an error of a callback, or of a pipeline; start items have no response."""
        request = getattr(response, "request", None)
        if request is not None:
            self.failed(request, _why(failure.value))

    def _spider_idle(self) -> None:
        """Keep the spider open until the crawl has ended: others may have requests for it."""
        if self._is_lost:
            raise DontCloseSpider  # the engine closes it with our reason
        trips = self._trips
        if not trips.is_idle:
            # Tell the others at once.
            trips.is_idle = True
            trips.look()
        if trips.answer.state == "running":
            raise DontCloseSpider
        if self._has_ended and not trips.stays:
            # Another handler keeps it open.
            trips.stays = True
            trips.look()
        self._has_ended = True

    # Requests on their way in and out.

    def _mode_of(self, request: Request) -> Mode:
        """Return whether a request is filtered and recorded."""
        if request.dont_filter:
            return "s" if is_start_request(request) else "a"
        if request.meta.get("bloomlock_filter") is False:
            return "r"
        is_redirect = "redirect_urls" in request.meta and not self._pages.maker_of(request)
        return "r" if is_redirect and self._fingerprints.leads_back(request) else "n"

    def _push_of(self, request: Request, fingerprint: bytes, mode: Mode) -> Push:
        downloader = self._crawler.engine.downloader
        host = downloader.get_slot_key(request)
        try:
            return Push(request, fingerprint, mode, host, self._codec.encode(request))
        except UnserializableError as error:
            self._stays_here(request, error)
            if (page := self._pages.maker_of(request)) is not None:
                page.children += 1
            if mode == "n":
                self._known.add(fingerprint)
            return Push(request, fingerprint, "l" if mode == "n" else "a", host)

    def _stays_here(self, request: Request, error: Exception) -> None:
        self._count("scheduler/unserializable")
        callback = getattr(request.callback, "__qualname__", repr(request.callback))
        if callback not in self._logged:
            self._logged.add(callback)
            what_then = (
                "the page that made it stays open until it is done"
                if self._pages.maker_of(request)
                else "no page made it, so it is lost if this process is killed"
            )
            logger.warning(
                "%s cannot be serialized (%s) and stays in this process; %s. It is logged once for "
                "the callback %s.",
                request,
                error,
                what_then,
                callback,
            )

    def _pickled(self, kind: str) -> None:
        self._count("bloomlock/pickled")
        if f"pickled {kind}" not in self._logged:
            self._logged.add(f"pickled {kind}")
            logger.info("Requests with a %s are pickled: JSON has no such type.", kind)

    def _collect_done(self) -> None:
        self._pages.collect(self._engine.in_progress)

    def _end(self, page: OpenPage) -> None:
        if page.error is not None:
            self._count("bloomlock/failed")
        self._trips.send(page)

    def _is_active(self) -> None:
        self._active_at = time.monotonic()
        self._trips.is_idle = self._has_ended = False

    # What the trips ask, and bring.

    def room(self) -> tuple[int, dict[str, int]]:
        """Return how many requests the engine can begin, and how many more each busy host.

        One that it cannot begin has no better order than in the queue.
        """
        engine = self._crawler.engine
        if self._is_closing or engine is None or engine.paused or engine.needs_backout():
            return 0, {}
        downloader = engine.downloader
        total = downloader.total_concurrency or MOST_AT_ONCE
        busy = Counter(map(downloader.get_slot_key, downloader.active))
        busy.update(page.host for page, _ in self._ready)
        free = {host: max(self._pace.limit_of(host) - count, 0) for host, count in busy.items()}
        return max(total - len(downloader.active) - len(self._ready), 0), free

    def is_at_rest(self) -> bool:
        # scrapy-redis keeps a spider open for so long.
        least = self._crawler.settings.getfloat("SCHEDULER_IDLE_BEFORE_CLOSE")
        is_long = time.monotonic() - self._active_at >= least
        return is_long and not (self._ready or self._local or self._pages)

    def not_answered(self, error: Exception, *, is_first: bool) -> None:
        self._count("bloomlock/errors")
        if is_first:
            self._count("bloomlock/outages")
            logger.error(
                "The queue of the crawl %r cannot be used (%s); the crawl waits for it.",
                self._settings.name,
                _why(error),
            )
        if isinstance(error, CapacityError):
            self._end_crawl("bloomlock_full")
        elif self._settings.on_outage == "close":
            self._end_crawl("bloomlock_outage")

    def _end_crawl(self, reason: str) -> None:
        engine = self._crawler.engine
        if "closing" not in self._logged and engine is not None:
            self._logged.add("closing")
            deferred_from_coro(engine.close_spider_async(reason=reason))

    def take(self, step: Step, answer: Answer) -> None:
        self._count("bloomlock/trips")
        if answer.state == "gone":
            self._lose()
            return
        if answer.was_unknown:
            self._let_go()
        for push, is_wanted in zip(step.pushes, answer.pushed, strict=True):
            self._pushed(push, is_wanted=is_wanted)
        for taken in answer.got:
            self._receive(taken)
        if answer.got:
            self._is_active()
        if answer.recovered:
            self._count("bloomlock/recovered", answer.recovered)
            logger.info(
                "%d requests that a process had taken wait again: it ended without having done "
                "them, or did not renew its lease.",
                answer.recovered,
            )
        is_at_end = not (answer.waiting or self._trips.is_idle)
        if answer.got or step.pushes or is_at_end or answer.state != "running":
            self._engine.wake()

    def _pushed(self, push: Push, *, is_wanted: bool) -> None:
        """Say to Scrapy what became of a push."""
        request = push.request
        if request is None or push.mode in "df":
            return
        if push.mode in "nrl":
            self._known.add(push.fingerprint)
        if not is_wanted:
            self.log_duplicate(request)
            self._crawler.signals.send_catch_log(
                signals.request_dropped, request=request, spider=self._spider
            )
            if not push.entry and (maker := self._pages.maker_of(request)) is not None:
                self._pages.child_ended(maker)
            return
        self._count("scheduler/enqueued")
        self._count(f"scheduler/enqueued/{'redis' if push.entry else 'memory'}")
        if not push.entry:
            maker = self._pages.maker_of(request)
            fingerprint = push.fingerprint if push.mode == "l" else b""
            page = OpenPage(request, push.host, parent=maker, fingerprint=fingerprint)
            self._local.append((page, request))

    def _receive(self, taken: Taken) -> None:
        try:
            request = self._codec.decode(taken.entry)
        # What stands in the queue may be of another spider, or of other code.
        except Exception as error:
            page = OpenPage(None, taken.host, taken.id)
            page.error, page.is_over = _why(error), True
            logger.exception("A request in the queue of %r cannot be read.", self._settings.name)
            self._pages.settle(page)
        else:
            self._ready.append((OpenPage(request, taken.host, taken.id), request))

    def _lose(self) -> None:
        """End: the server has another crawl than this one, or none."""
        if self._is_closing or self._has_ended:
            return
        self._is_lost = True
        self._trips.stop()
        logger.error(
            "The crawl %r, or its filter, is gone from the server; this process stops, as it does "
            "not know any more what was fetched.",
            self._settings.name,
        )
        self._end_crawl("bloomlock_lost")

    def _let_go(self) -> None:
        """Hold nothing any more: the server has put back what this process had taken."""
        logger.warning(
            "The lease of this process was over, so others may fetch what it had begun; it goes on."
        )
        self._ready.clear()
        self._pages.let_go()

    async def _finish(self, reason: str) -> None:
        """Do the last things that need the server. Never raises."""
        if not hasattr(self, "_trips"):
            return  # `open` has failed, and said why
        self._trips.stop()
        if not self._is_lost:
            await self._trips.finish(self._collect_done)
        try:
            if not self._is_lost:
                await self._stats.look(self._crawl.shared)
            leave = partial(self._crawl.close, finished=reason == "finished")
            is_over, waiting, failed = await run_in_thread(leave)
        # An error here would hide how the crawl ended.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "The crawl %r was not left in order, so what this process has not done waits for "
                "%g s: %s",
                self._settings.name,
                self._settings.lease,
                _why(error),
            )
        else:
            name = self._settings.name
            if failed:
                logger.warning(
                    "%d requests of the crawl %r failed and are kept: `bloomlock failed %s` has "
                    "them.",
                    failed,
                    name,
                    name,
                )
            if waiting and not is_over:
                logger.info("%d requests of the crawl %r wait for the next start.", waiting, name)
        self._client.close()

    def _count(self, name: str, by: int = 1) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(name, by)


def _why(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
