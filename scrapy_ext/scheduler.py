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
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as LocalScheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from bloomlock.errors import CapacityError
from scrapy_ext.connection import opening
from scrapy_ext.crawl_state import Crawl
from scrapy_ext.delivered import Delivered
from scrapy_ext.engine import EngineView
from scrapy_ext.fingerprints import Fingerprints, RecentFingerprints
from scrapy_ext.middleware import attach
from scrapy_ext.migration import queue_of_scrapy_redis
from scrapy_ext.pages import OpenPage
from scrapy_ext.queue import Answer, Mode, Push, Step, dead_among, is_start_request
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.utils.asyncio import CallLaterResult
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

logger = logging.getLogger("bloomlock.scrapy")

PUSHES_PER_TRIP = 256
"""Some milliseconds of the server's time."""
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
"""How often a process that has nothing to do looks for requests of others."""
RENEWALS_PER_LEASE = 3
PROBE_S = 1.0
"""How often a step is repeated while the server is away."""


class Scheduler(BaseScheduler):
    """Shares a crawl with all processes of the spider; no request is lost with one of them.

    The add-on sets it. It needs the two middlewares that the add-on sets too. DUPEFILTER_CLASS is
    not used beside it.
    """

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
        # What is to be sent, in order: requests, pages that are done, and what is called then.
        # Where a None stands the engine has asked for requests; what comes later is sent later.
        self._waiting: deque[Push | OpenPage | Callable[[], None] | None] = deque()
        self._ready: deque[tuple[OpenPage, Request]] = deque()
        self._local: deque[tuple[OpenPage, Request]] = deque()
        self._open: dict[Request, OpenPage] = {}
        # Of what a callback made: the page. Nothing that the downloader made is in it.
        self._page_of: WeakKeyDictionary[Request, OpenPage] = WeakKeyDictionary()
        self._known = RecentFingerprints()
        self._when_done: list[Callable[[Request], None]] = []
        self._number = 0
        self._step: Step | None = None
        self._then: list[Callable[[], None]] = []
        self._running: Deferred[None] | None = None
        self._timer: CallLaterResult | None = None
        self._is_running = self._is_scheduled = self._is_due = False
        self._is_hungry = self._is_asked = self._is_idle = False
        self._is_closing = self._stays = False
        self._away_since: float | None = None
        self._answer = Answer("running")
        self._look_s = SHORTEST_LOOK_S
        self._active_at = time.monotonic()
        self._dead: list[str] = []
        self._is_lost = self._has_ended = False
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
            self._answer = self._crawl.exchange(self._next_step())
            if begun.what != "joined":
                self._import_queue()
        log_begin(crawler, self._settings, begun)
        connect = crawler.signals.connect
        connect(self._spider_idle, signal=signals.spider_idle)
        connect(self._spider_error, signal=signals.spider_error)
        connect(self._item_error, signal=signals.item_error)
        self._stats.watch(self._crawl.shared)
        self._arm()

    def _import_queue(self) -> None:
        settings = self._crawler.settings
        for entries in queue_of_scrapy_redis(settings, self._client, self._spider.name):
            pushes = [self._imported(entry) for entry in entries]
            self._answer = self._crawl.exchange(self._next_step(pushes=pushes))

    def _imported(self, entry: bytes) -> Push:
        try:
            return self._push_of(self._codec.decode(entry), b"-", "a")
        # What scrapy-redis had queued may be of other code.
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
        self._waiting.append(self._push_of(request, fingerprint, mode))
        self._is_active()
        self._schedule()
        return True

    def next_request(self) -> Request | None:
        """Return a request that was taken from the queue; None while there is none at hand."""
        self._collect_done()
        if self._local:
            page, request = self._local.pop()
        elif self._ready:
            page, request = self._ready.popleft()
        else:
            self._want()
            return None
        self._open[request] = page
        self._count("scheduler/dequeued")
        self._count(f"scheduler/dequeued/{'redis' if page.id else 'memory'}")
        if request.meta.get("is_start_request"):
            # What is made of it by an errback, or by a callback with its `meta`, is another one.
            request.meta["bloomlock_begun"] = True
        return request

    def _want(self) -> None:
        """Ask for requests, after all that has been enqueued until now, as Scrapy's order is."""
        self._is_hungry = True
        has_pushes = self._step is not None and self._step.pushes
        # If all hosts that have requests are not due, the timer asks when one is.
        may_get = self._answer.waiting and (self._answer.due_s is None or self._answer.is_full)
        if (self._waiting or may_get or has_pushes) and not self._is_asked:
            self._is_asked = True
            self._waiting.append(None)
            self._schedule()

    def has_pending_requests(self) -> bool:
        """Return whether anything waits here or in the queue, or is on its way."""
        self._collect_done()
        if self._is_lost:
            return False
        return bool(
            self._ready or self._local or self._waiting or self._step or self._answer.waiting
        )

    def __len__(self) -> int:
        """Return how many requests wait, as far as is known; sends nothing."""
        here = len(self._waiting) + len(self._ready) + len(self._local)
        return self._answer.waiting + here

    def close(self, reason: str) -> Deferred[None]:
        """Send what waits, put back what was not begun, and leave the crawl.

        Args:
            reason: Why the spider closed.
        """
        self._is_closing = True
        self._disarm()
        self._stats.stop()
        return deferred_from_coro(self._finish(reason))

    # What the middlewares and spiders say.

    async def check_many(self, requests: list[Request], page: Request) -> list[bool]:
        """Note what a callback made; return for each request whether the engine gets it.

        Args:
            requests: What the callback yields.
            page: The request whose callback it is.
        """
        opened = self._open.get(page)
        are_kept = []
        for request in requests:
            if opened is not None:
                self._page_of[request] = opened
            is_filtered = self._mode_of(request) == "n"
            are_kept.append(not (is_filtered and self._fingerprints.of(request) in self._known))
        return are_kept

    def log_duplicate(self, request: Request) -> None:
        """Count and log a duplicate, as Scrapy's own filter does."""
        self._log.log(request, self._spider)

    def failed(self, request: Request, why: str) -> None:
        """Keep a request that failed; it is not done.

        Args:
            request: The request, as `next_request` returned it.
            why: The error.
        """
        if (page := self._open.get(request)) is not None:
            page.error = why

    def failed_entry(self, data: bytes, why: str) -> None:
        """Keep among the failed what cannot become a request."""
        self._waiting.append(self._failed_push(data, why))
        self._schedule()

    def _failed_push(self, data: bytes, why: str) -> Push:
        self._count("bloomlock/failed")
        return Push(None, b"-", "f", why, data)

    def on_done(self, call: Callable[[Request], None]) -> None:
        """Call with each request that is done and did not fail."""
        self._when_done.append(call)

    def when_sent(self, call: Callable[[], None]) -> None:
        """Call when everything enqueued before is in the queue of the server."""
        self._waiting.append(call)
        self._schedule()

    def stay_open(self) -> None:
        """Say that the spider waits for more by itself: the crawl does not end before it does."""
        self._stays = True

    def _spider_error(self, failure: Failure, response: Response | Failure | None) -> None:
        self._note_error(response, failure)

    def _item_error(self, failure: Failure, response: Response | Failure | None) -> None:
        self._note_error(response, failure)

    def _note_error(self, response: Any, failure: Failure) -> None:
        request = getattr(response, "request", None)
        if request is not None:
            self.failed(request, _why(failure.value))

    def _spider_idle(self) -> None:
        """Keep the spider open until the crawl has ended: others may have requests for it."""
        if self._is_lost:
            raise DontCloseSpider  # the engine closes it with our reason
        if not self._is_idle:
            # Tell the others at once.
            self._is_hungry = self._is_idle = self._is_due = True
            self._schedule()
        if self._answer.state == "running":
            raise DontCloseSpider
        if self._has_ended and not self._stays:
            # Another handler keeps it open.
            self._stays = self._is_due = True
            self._schedule()
        self._has_ended = True

    # Requests on their way in and out.

    def _mode_of(self, request: Request) -> Mode:
        """Return whether a request is filtered and recorded."""
        if request.dont_filter:
            return "s" if is_start_request(request) else "a"
        if request.meta.get("bloomlock_filter") is False:
            return "r"
        is_redirect = "redirect_urls" in request.meta and request not in self._page_of
        return "r" if is_redirect and self._fingerprints.leads_back(request) else "n"

    def _push_of(self, request: Request, fingerprint: bytes, mode: Mode) -> Push:
        downloader = self._crawler.engine.downloader
        host = downloader.get_slot_key(request)
        try:
            return Push(request, fingerprint, mode, host, self._codec.encode(request))
        except UnserializableError as error:
            self._stays_here(request, error)
            if (page := self._page_of.get(request)) is not None:
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
                if request in self._page_of
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
        """Find the requests that the engine is done with: callback, items and all."""
        in_progress = self._engine.in_progress
        for request in [one for one in self._open if one not in in_progress]:
            page = self._open.pop(request)
            page.is_over = True
            self._settle(page)

    def _settle(self, page: OpenPage) -> None:
        """End a page if its callback is over and so are the children that stay in this process."""
        if not page.is_over or page.children:
            return
        if page.error is not None:
            self._count("bloomlock/failed")
        elif page.request is not None:
            for call in self._when_done:
                call(page.request)
        if page.id or (page.is_recorded and page.error is None):
            self._waiting.append(page)
            self._schedule()
        if (parent := page.parent) is not None:
            if page.error is not None:
                parent.error = f"{page.request}, which it made, failed: {page.error}"
            self._child_ended(parent)

    def _child_ended(self, parent: OpenPage) -> None:
        parent.children -= 1
        self._settle(parent)

    def _is_active(self) -> None:
        self._active_at = time.monotonic()
        self._is_idle = self._has_ended = False

    # Round trips.

    def _schedule(self) -> None:
        """Make a round trip as soon as the reactor has done what it is at."""
        if not (self._is_running or self._is_scheduled or self._away_since is not None):
            self._arm(0.0)

    def _arm(self, seconds: float | None = None) -> None:
        """Look again after some seconds; None: when lease, a host or an empty hand says so."""
        if self._is_closing or self._is_lost:
            return
        if seconds is None:
            seconds = self._settings.lease / RENEWALS_PER_LEASE
            if self._is_hungry:
                due_s = self._answer.due_s
                seconds = min(seconds, self._look_s if due_s is None else due_s)
        self._disarm()
        self._is_scheduled = seconds == 0
        self._timer = call_later(seconds, self._begin)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._is_due |= not self._is_scheduled
        self._is_scheduled = False
        if not self._is_running:
            self._is_running = True
            self._running = deferred_from_coro(self._run())

    async def _run(self) -> None:
        """Make round trips until there is nothing to send."""
        pause: float | None = None
        try:
            while not (self._is_closing or self._is_lost) and self._has_work():
                if not await self._trip():
                    pause = PROBE_S
                    break
        finally:
            self._is_running = False
            self._arm(pause)

    def _has_work(self) -> bool:
        return bool(self._step or self._waiting or self._is_due)

    async def _trip(self) -> bool:
        """Make one round trip; return whether it was answered."""
        if self._step is None:
            self._step = self._make_step()
        self._is_due = False
        step = self._step
        try:
            answer = await run_in_thread(partial(self._crawl.exchange, step))
        # The step is kept and sent again, whatever it was.
        except Exception as error:  # noqa: BLE001
            self._not_answered(error)
            return False
        self._step = None
        self._count("bloomlock/trips")
        self._take(step, answer)
        return True

    def _make_step(self) -> Step:
        pushes: list[Push] = []
        pages: list[OpenPage] = []
        self._then = []
        is_asked = self._is_due
        while self._waiting and len(pushes) + len(pages) < PUSHES_PER_TRIP and not is_asked:
            one = self._waiting.popleft()
            if one is None:
                is_asked, self._is_asked = True, False
            elif isinstance(one, Push):
                pushes.append(one)
            elif isinstance(one, OpenPage):
                pages.append(one)
            else:
                self._then.append(one)
        pushes += [one.record() for one in pages if not one.id]
        sent = [one for one in pages if one.id]
        here = (pushes, sent, self._then, self._waiting, self._ready, self._local, self._open)
        is_idle = self._is_idle and not any(here) and self._idle_for_long()
        wanted = self._num_wanted() if is_asked else 0
        return self._next_step(
            pushes=pushes,
            done=[one.id for one in sent if one.error is None],
            failed=[(one.id, one.error) for one in sent if one.error is not None],
            wanted=wanted,
            free=self._free() if wanted else {},
            is_idle=is_idle,
            stays=self._stays,
            dead=self._dead,
        )

    def _next_step(self, **what: Any) -> Step:
        self._number += 1
        return Step(self._number, **what)

    def _idle_for_long(self) -> bool:
        # scrapy-redis keeps a spider open for so long.
        least = self._crawler.settings.getfloat("SCHEDULER_IDLE_BEFORE_CLOSE")
        return time.monotonic() - self._active_at >= least

    def _num_wanted(self) -> int:
        """Return how many requests the engine can begin; one that it cannot has no better order."""
        engine = self._crawler.engine
        if not self._is_hungry or self._is_closing or engine is None:
            return 0
        if engine.paused or engine.needs_backout():
            return 0
        downloader = engine.downloader
        total = downloader.total_concurrency or PUSHES_PER_TRIP
        return max(total - len(downloader.active) - len(self._ready), 0)

    def _free(self) -> dict[str, int]:
        """Return how many more requests each host may have that this process is at."""
        downloader = self._crawler.engine.downloader
        busy = Counter(map(downloader.get_slot_key, downloader.active))
        busy.update(page.host for page, _ in self._ready)
        return {host: max(self._pace.limit_of(host) - count, 0) for host, count in busy.items()}

    def _not_answered(self, error: Exception) -> None:
        self._count("bloomlock/errors")
        if self._away_since is None:
            self._away_since = time.monotonic()
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

    def _take(self, step: Step, answer: Answer) -> None:
        """Take the answer to a step."""
        if self._away_since is not None:
            lasted = time.monotonic() - self._away_since
            self._away_since = None
            logger.warning(
                "The queue of the crawl %r answers again after %.1f s.", self._settings.name, lasted
            )
        if answer.state == "gone":
            self._lose()
            return
        if answer.was_unknown:
            self._forget_taken()
        for push, is_wanted in zip(step.pushes, answer.pushed, strict=True):
            self._pushed(push, is_wanted=is_wanted)
        for call in self._then:
            call()
        for taken in answer.got:
            self._receive(taken.id, taken.host, taken.entry)
        if answer.got:
            self._is_active()
            self._look_s = SHORTEST_LOOK_S
            self._is_hungry = False
        else:
            self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        if answer.recovered:
            self._count("bloomlock/recovered", answer.recovered)
            logger.info(
                "%d requests that a process had taken wait again: it ended without having done "
                "them, or did not renew its lease.",
                answer.recovered,
            )
        self._answer = answer
        is_at_end = not (answer.waiting or self._is_idle)
        if answer.got or step.pushes or is_at_end or answer.state != "running":
            self._engine.wake()
        # A process that has requests of its own finds the dead when it has none.
        self._dead = dead_among(answer.workers) if self._is_hungry and answer.taken else []

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
            if not push.entry and (parent := self._page_of.get(request)) is not None:
                self._child_ended(parent)
            return
        self._count("scheduler/enqueued")
        self._count(f"scheduler/enqueued/{'redis' if push.entry else 'memory'}")
        if not push.entry:
            page = OpenPage(request, push.host, parent=self._page_of.get(request))
            page.fingerprint, page.is_recorded = push.fingerprint, push.mode == "l"
            self._local.append((page, request))

    def _receive(self, identity: str, host: str, entry: bytes) -> None:
        try:
            request = self._codec.decode(entry)
        # What stands in the queue may be of another spider, or of other code.
        except Exception as error:
            page = OpenPage(None, host, identity)
            page.error, page.is_over = _why(error), True
            logger.exception("A request in the queue of %r cannot be read.", self._settings.name)
            self._settle(page)
            return
        self._ready.append((OpenPage(request, host, identity), request))

    def _lose(self) -> None:
        """End: the server has another crawl than this one, or none."""
        if self._is_closing or self._has_ended:
            return
        self._is_lost = True
        logger.error(
            "The crawl %r, or its filter, is gone from the server; this process stops, as it does "
            "not know any more what was fetched.",
            self._settings.name,
        )
        self._end_crawl("bloomlock_lost")

    def _forget_taken(self) -> None:
        """Hold nothing any more: the server has put back what this process had taken."""
        logger.warning(
            "The lease of this process was over, so others may fetch what it had begun; it goes on."
        )
        self._ready.clear()
        for page in self._open.values():
            page.id = ""

    async def _finish(self, reason: str) -> None:
        """Do the last things that need the server. Never raises."""
        if self._is_running and self._running is not None:
            await maybe_deferred_to_future(self._running)
        self._is_hungry = False
        self._collect_done()
        self._disarm()
        while (self._step or self._waiting) and not self._is_lost:
            if not await self._trip():
                break
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
            self._say_what_is_left(is_over=is_over, waiting=waiting, failed=failed)
        self._client.close()

    def _say_what_is_left(self, *, is_over: bool, waiting: int, failed: int) -> None:
        name = self._settings.name
        if failed:
            logger.warning(
                "%d requests of the crawl %r failed and are kept: `bloomlock failed %s` has them.",
                failed,
                name,
                name,
            )
        if waiting and not is_over:
            logger.info("%d requests of the crawl %r wait for the next start.", waiting, name)

    def _count(self, name: str, by: int = 1) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(name, by)


def _why(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
