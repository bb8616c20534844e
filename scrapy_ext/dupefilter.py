"""The duplicates filter for Scrapy and scrapy-redis, shared by all processes of a spider."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary, WeakSet

from scrapy import signals
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.request import fingerprint as default_fingerprint

from bloomlock.errors import BloomlockError
from scrapy_ext.answers import Check, LeftVerdicts, UnsharedFilter, Verdict
from scrapy_ext.claims import ClaimingFilter
from scrapy_ext.connection import redis_client
from scrapy_ext.controls import RequestControls, returns
from scrapy_ext.duplicates import DuplicateLog, are_unheard, asks_only, receivers_of
from scrapy_ext.guard import GuardedFilter
from scrapy_ext.outcomes import Outcomes, check_components
from scrapy_ext.settings import (
    FilterSettings,
    keeps_requests,
    only_looks,
    warn_of_queue,
    warn_of_unknown,
)
from scrapy_ext.stats import FilterStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware

    from bloomlock import BloomFilter

logger = logging.getLogger("bloomlock.scrapy")

DROPPED_PER_COUNT = 1000
"""Duplicates that are counted together at most; those of a page are, when it ends."""

# A crawler takes no attributes of others. (The filter refers to it, so the reference is weak.)
_OF_CRAWLER: WeakKeyDictionary[Crawler, weakref.ref[BloomDupeFilter]] = WeakKeyDictionary()
_BATCHED: WeakSet[Crawler] = WeakSet()


class BloomDupeFilter(BaseDupeFilter):
    """Asks one Bloom filter in Redis whether any process of the spider has seen a request.

    Set `DUPEFILTER_CLASS = "scrapy_ext.BloomDupeFilter"`; it serves Scrapy's own scheduler and
    that of scrapy-redis. The filter outlives the crawl unless `BLOOMLOCK_CLEAR_ON_CLOSE` says
    otherwise. `request_seen` costs one round trip and never raises: what becomes of a request
    that cannot be checked is the policy of `BLOOMLOCK_ON_OUTAGE`.
    """

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler; its settings are read by `open`.

        Scrapy reports an error raised here under another one of its own, one raised by `open`
        as it is.

        Args:
            crawler: The crawler this filter serves.
        """
        self._crawler = crawler
        self._config: FilterSettings | None = None
        self._guard: GuardedFilter | UnsharedFilter | None = None
        self._left = LeftVerdicts()
        self._given: tuple[Check, Verdict] | None = None
        self._controls = RequestControls(crawler)
        self._stats = FilterStats(crawler)
        self.outcomes: Outcomes | None = None
        self._dropped: Request | None = None
        self._logged: set[str] = set()
        self._log = DuplicateLog(crawler)
        self._flush_due = False
        self._spider_is_open = False
        self._watches_unfiltered = False
        self._unfiltered: WeakSet[Request] = WeakSet()
        self._closed = False
        # Duplicates that were not counted yet; and those of them that were no part of a check.
        self._num_dropped = self._num_unchecked = 0
        _OF_CRAWLER[crawler] = weakref.ref(self)
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the filter for Scrapy's own scheduler, which then calls `open`."""
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Make and open the filter for the scheduler of scrapy-redis, which never calls `open`.

        Raises:
            BloomlockError: As `open`.
        """
        self = cls(spider.crawler)
        self._flush_due = spider.crawler.settings.getbool("SCHEDULER_FLUSH_ON_START")
        self.open()
        return self

    def open(self) -> None:
        """Read the settings, then create the filter in the server or attach to it.

        Whatever goes wrong here stops the crawl before it starts: it would go unfiltered. Under
        Scrapy's commands that only look at pages (shell, fetch, view, parse, check) the filter is
        left alone, and requests are compared within the process.

        Raises:
            ConfigurationError: A setting is not usable; the sentence names it.
            FilterMismatchError: Another filter is stored under the name.
            ServerError: The server cannot be reached or refuses, or the embedded one could not be
                started.
        """
        crawler = self._crawler
        spider = crawler.spider or crawler.spidercls
        if only_looks(crawler):
            self._guard = UnsharedFilter()
            logger.info("This command records no requests; the filter of the crawls is left alone.")
            return
        warn_of_unknown(crawler.settings)
        try:
            config = FilterSettings.read(crawler.settings, str(spider.name))
            guard = self._make_guard(config)
            recorded = guard.start()
        except BloomlockError as error:
            logger.critical("%s", error)
            # Older versions of Scrapy, 2.14 is one, end with exit status 0 if there is a spider.
            crawler.spider = None
            raise
        self._config, self._guard = config, guard
        self._controls.record_unfiltered = config.record_unfiltered
        self._log = DuplicateLog(crawler, debug=config.debug, sample=config.audit_sample)
        logger.info(
            "Using the filter %r: about %s requests were recorded in it before.",
            config.name,
            f"{recorded:,}",
        )
        guard.on_trip, guard.on_kept = self._stats.note_trip, self._stats.note_kept
        warn_of_queue(crawler.settings, config)
        is_met = crawler in _BATCHED and keeps_requests(crawler.settings)
        if is_met and not config.record_unfiltered:
            crawler.signals.connect(self._fetched, signal=signals.request_reached_downloader)
        else:
            self._watch_unfiltered()

    def _make_guard(self, config: FilterSettings) -> GuardedFilter:
        """Return the filter that records a request when it is due by BLOOMLOCK_MARK."""
        crawler = self._crawler

        def connect() -> Any:
            return redis_client(crawler.settings, config.timeout)

        if config.mark == "scheduled" or crawler.spider is None:
            return GuardedFilter(config, connect, self._count, self._end_crawl)
        check_components(crawler, config.mark, config.strategy)
        guard = ClaimingFilter(config, connect, self._count, self._end_crawl, crawler.spider)
        self.outcomes = Outcomes(
            crawler,
            guard,
            config,
            self._fingerprint,
            schedule=self._schedule,
            # It waited in the queue; dropped, it would be lost.
            claim=lambda request: self._check(guard, request, droppable=False),
            is_filtered=self._controls.is_filtered,
        )
        return guard

    def _schedule(self, request: Request) -> None:
        """Schedule a request that is claimed already."""
        self._left.leave(request, Verdict.NEW, droppable=True)
        if self._crawler.engine is not None:
            self._crawler.engine.crawl(request)

    def request_seen(self, request: Request) -> bool:
        """Record a request and return whether any process had recorded it before.

        Args:
            request: The request; its fingerprint is that of `REQUEST_FINGERPRINTER_CLASS`.

        Returns:
            True if the request is a duplicate, or if it could not be checked and the policy is
            `drop`. False for what `meta` excepts from filtering, and for a redirect that leads back
            to its own request. Never raises.
        """
        if self._guard is None:
            return True  # `open` failed, was logged, and stops the crawl
        verdict, droppable = self._take(request) or self._verdict_on(self._guard, request)
        if verdict is Verdict.SEEN:
            is_dropped = droppable
            if not droppable:
                self._count("unfiltered")
        else:
            is_dropped = verdict is Verdict.DROPPED
            if verdict is not Verdict.NEW:
                self._count(verdict.value)
            if is_dropped:
                self._dropped = request
        if is_dropped and self.outcomes is not None:
            self.outcomes.dropped(request)
        return is_dropped

    def _verdict_on(
        self, guard: GuardedFilter | UnsharedFilter, request: Request
    ) -> tuple[Verdict, bool]:
        """Check a request now; return the verdict, and whether it is dropped if it is seen."""
        self._count("checked")
        is_filtered, is_recorded = self._controls.read(request)
        if not (is_filtered or is_recorded):
            return Verdict.NEW, False
        if self.outcomes is not None and self.outcomes.continues(request):
            return Verdict.NEW, False
        droppable = is_filtered and not returns(request, self._crawler, self._fingerprint)
        return self._check(guard, request, droppable=droppable), droppable

    def prepare(self, request: Request) -> Check | None:
        """Return what `check_many` needs of a request; None if it is not to be checked ahead.

        Args:
            request: A request that will be scheduled.
        """
        is_filtered, is_recorded = self._controls.read(request)
        if not (is_filtered or is_recorded):
            return None
        if request.dont_filter:
            self._watch_unfiltered()
        try:
            key = self._fingerprint(request)
        # Whatever it is, `request_seen` meets it again, and decides.
        except Exception:  # noqa: BLE001
            return None
        return Check(request, key, is_filtered, is_recorded)

    async def check_many(self, checks: Sequence[Check]) -> list[Verdict]:
        """Check requests ahead of `request_seen`.

        What is checked here is recorded, so each request has to be scheduled, with its verdict left
        (`leave`) or given (`give`) before. Never raises.

        Args:
            checks: What `prepare` returned, in the order in which the requests are scheduled.

        Returns:
            A verdict for each; none at all if `open` failed.

        Cost: one round trip for all, in a thread; the reactor goes on meanwhile.
        """
        if self._guard is None:
            return []
        unusual = [
            (at, check)
            for at, check in enumerate(checks)
            if not (check.is_filtered and check.is_recorded)
        ]
        unfiltered = sum(check.request.dont_filter for _, check in unusual)
        self._stats.count("checked", len(checks) - unfiltered)
        return await self._guard.check_many(
            [check.key for check in checks],
            requests=[check.request for check in checks],
            undroppable={at for at, check in unusual if not check.is_filtered},
            unrecorded={at for at, check in unusual if not check.is_recorded},
        )

    def leave(self, check: Check, verdict: Verdict) -> None:
        """Keep the verdict on a request that is scheduled some time."""
        self._left.leave(check.request, verdict, droppable=check.is_filtered)

    def give(self, checked: tuple[Check, Verdict]) -> None:
        """Keep the verdict on the request that is scheduled now."""
        self._given = checked

    def may_drop(self, offsite: OffsiteMiddleware | None) -> bool:
        """Return whether duplicates may be dropped here and not by the engine: none would notice.

        Args:
            offsite: Scrapy's middleware, for which what is checked is on site.
        """
        deaf = [self._scheduled, *receivers_of(offsite)]
        if self.outcomes is not None:
            deaf.append(self.outcomes.scheduled)
        kind, own = type(self), BloomDupeFilter
        return (
            (kind.request_seen, kind.log) == (own.request_seen, own.log)
            and asks_only(self._crawler.engine, self)
            and are_unheard(self._crawler, deaf)
        )

    def drop_if_seen(self, check: Check) -> bool:
        """Drop a request that is seen by what is known without the server; see `drop`."""
        guard = self._guard
        if not (
            check.is_filtered and isinstance(guard, GuardedFilter) and guard.is_seen_here(check.key)
        ):
            return False
        self._num_unchecked += 1
        self.drop(check.request)
        return True

    def drop(self, request: Request) -> None:
        """Drop a duplicate that a callback yielded, where `may_drop`; `count_dropped` counts it.

        It is no redirect, so no other request ends with it.
        """
        if self._crawler.spider is not None:
            self._log.note(request, self._crawler.spider)
        self._num_dropped += 1
        if self._num_dropped >= DROPPED_PER_COUNT:
            # A callback may go on for as long as the crawl.
            self.count_dropped()

    def count_dropped(self) -> None:
        """Count what was dropped since the last time: one by one it takes as long as dropping."""
        if self._num_dropped:
            self._log.count(self._num_dropped)
        if self._num_unchecked:
            self._stats.count("checked", self._num_unchecked)
            if isinstance(self._guard, GuardedFilter):
                self._guard.note_kept()
        self._num_dropped = self._num_unchecked = 0

    def _take(self, request: Request) -> tuple[Verdict, bool] | None:
        """Return the verdict on a request and whether it is dropped if it is seen; None: none."""
        given = self._given
        if given is not None and given[0].request is request:
            self._given = None
            # It comes from a callback, and is no redirect.
            return given[1], given[0].is_filtered
        return self._left.take(request)

    def _fingerprint(self, request: Request) -> bytes:
        """Return the crawler's own fingerprint of a request; raises what the fingerprinter does."""
        # Read here and not in the constructor, which may run before it is set.
        key = self._crawler.request_fingerprinter.fingerprint(request)
        # The view refuses what is not bytes; bytes(5) would be five zeros.
        return key if type(key) is bytes else bytes(memoryview(key))

    def _check(
        self, guard: GuardedFilter | UnsharedFilter, request: Request, *, droppable: bool = True
    ) -> Verdict:
        """Take the crawler's own fingerprint of the request and check it."""
        recorded = self._controls.is_recorded(request)
        try:
            key = self._fingerprint(request)
        # A project's fingerprinter may raise anything; the links of the page shall not pay for it.
        except Exception:
            self._count("fingerprint_errors")
            if "fingerprint" not in self._logged:
                self._logged.add("fingerprint")
                logger.exception("The request fingerprinter failed for %s", request)
            own = b"no fingerprint:" + default_fingerprint(request)
            return guard.decide(own, owed=False, droppable=droppable, recorded=recorded)
        if isinstance(guard, GuardedFilter):
            guard.note(key, request)
        return guard.check(key, droppable=droppable, recorded=recorded)

    def clear(self) -> None:
        """Called by scrapy-redis: wipe the filter on start where that is set, never on close.

        The scheduler calls this for `SCHEDULER_FLUSH_ON_START`, once and first of all, and again
        when a process closes without `SCHEDULER_PERSIST`. The second would take the filter away
        from the processes still running. To wipe it on purpose call `wipe`.
        """
        if self._flush_due:
            self._flush_due = False
            self.wipe()
        elif self._config is not None and not self._config.clear_on_close:
            logger.info(
                "The filter %r is kept; set BLOOMLOCK_CLEAR_ON_CLOSE, or call wipe(), to clear it.",
                self._config.name,
            )

    def wipe(self) -> None:
        """Clear the filter, for every process that uses it.

        Raises:
            redis.exceptions.RedisError: The server could not be reached, or refused.
        """
        if self._guard is not None:
            self._guard.wipe()

    def close(self, reason: str = "") -> None:
        """Put the filter's state into the stats, delete it if asked to, close the connection.

        Args:
            reason: Why the spider closed; not used.
        """
        del reason
        if self._guard is not None and not self._closed:
            self._closed = True
            self._stats.stop()
            self.count_dropped()
            if self.outcomes is not None:
                self.outcomes.settle_failed()
            self._guard.finish(self._finish)

    def _finish(self, shared: BloomFilter) -> None:
        """Do the last things that need the server."""
        self._stats.note(shared.info())
        if self._config is not None and self._config.clear_on_close:
            shared.delete()

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that was filtered, and count it.

        Args:
            request: The request `request_seen` returned True for.
            spider: Its spider.
        """
        if self._dropped is request:
            self._dropped = None
            logger.debug("Dropped unchecked request: %s", request, extra={"spider": spider})
            return
        self._log.log(request, spider)

    def _count(self, what: str) -> None:
        self._stats.count(what)

    def _end_crawl(self, reason: str) -> None:
        """Close the spider once; before it is open, `_spider_opened` does it."""
        if self._spider_is_open and "closing" not in self._logged:
            self._logged.add("closing")
            logger.error("Closing the spider: %s.", reason)
            deferred_from_coro(self._crawler.engine.close_spider_async(reason=reason))

    def _spider_opened(self) -> None:
        self._spider_is_open = True
        if self._guard is None:  # a scheduler that does not keep the contract
            try:
                self.open()
            except BloomlockError:
                self._end_crawl("bloomlock_failed")
        elif self._guard.broken and self._guard.closes:
            self._end_crawl("bloomlock_outage")
        if isinstance(self._guard, GuardedFilter):
            self._stats.watch(self._guard.shared)

    def _spider_closed(self, reason: str = "") -> None:
        # scrapy-redis never calls `close`; after Scrapy's own scheduler has, this does nothing.
        self.close(reason)

    def _watch_unfiltered(self) -> None:
        """Listen for requests with `dont_filter`, of which Scrapy says nothing to a filter.

        With the middleware that is put off until the first one is met: the signal of a link takes
        longer than Scrapy takes to look into its own filter.
        """
        if not self._watches_unfiltered:
            self._watches_unfiltered = True
            self._crawler.signals.connect(self._scheduled, signal=signals.request_scheduled)

    def _scheduled(self, request: Request) -> None:
        if not request.dont_filter or not self._controls.is_recorded(request):
            return
        self._unfiltered.add(request)
        if self._guard is not None and not self._take(request):
            self._check(self._guard, request, droppable=False)

    def _fetched(self, request: Request) -> None:
        """Record what was scheduled before there was a reason to listen."""
        if request.dont_filter and request not in self._unfiltered:
            self._scheduled(request)
            if request in self._unfiltered:
                self._watch_unfiltered()


def expect_batches(crawler: Crawler) -> None:
    """Say that requests of a crawler are checked by `check_many` before they are scheduled."""
    _BATCHED.add(crawler)


def filter_of(crawler: Crawler) -> BloomDupeFilter | None:
    """Return the filter that serves a crawler; None if its duplicates filter is another one."""
    made = _OF_CRAWLER.get(crawler)
    return made() if made is not None else None
