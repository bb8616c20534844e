"""The duplicates filter for Scrapy's own scheduler, shared by all processes of a spider.

It always answers, with or without its server.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from weakref import WeakSet

from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro

from bloomlock import NearCache
from bloomlock.errors import ConfigurationError
from scrapy_ext import engine
from scrapy_ext.engine import run_in_thread
from scrapy_ext.middleware import BatchingMiddleware
from scrapy_ext.requests import Recent, leads_back
from scrapy_ext.settings import only_looks, opening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.utils.asyncio import CallLaterResult

    from bloomlock import BloomFilter

logger = logging.getLogger("bloomlock.scrapy")

NEAR_CACHE = 100_000
"""Requests that the process remembers as seen: nine links of ten are repeats."""
Answers: TypeAlias = list[bool] | Exception | None
"""The answers of the filter; None if it is not asked."""
PROBE_S = 1.0
"""How often the filter tries a server that is away."""


class BloomDupeFilter(RFPDupeFilter):
    """Asks one Bloom filter in Redis whether any process of the spider has seen a request.

    Set `DUPEFILTER_CLASS = "scrapy_ext.BloomDupeFilter"` to keep Scrapy's own scheduler, and
    `BatchingMiddleware` beside it. The filter outlives the crawl; what was queued and not fetched
    when a process dies counts as seen. While the server is away, what this process has not let
    through is fetched; a filter that comes back is given that before it is asked again.
    """

    _shared: BloomFilter | None = None

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler; its settings are read by `open`."""
        super().__init__(debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        self._crawler = crawler
        self._count: Any = crawler.stats.inc_value
        self._fingerprint_of = crawler.request_fingerprinter.fingerprint
        # Requests that the middleware has checked, on their way to `request_seen`.
        self._checked: WeakSet[Request] = WeakSet()
        # Fingerprints that this process has let through.
        self._passed = Recent()
        # When the filter was suspended: it is away, or has lost items.
        self._away_since: float | None = None
        self._timer: CallLaterResult | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RFPDupeFilter:  # type: ignore[override]
        """Make the filter; for commands that only look at pages, one of the process alone."""
        if only_looks(crawler):
            logger.info("This command records no requests; the filter of the crawls is left alone.")
            return RFPDupeFilter.from_crawler(crawler)
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> NoReturn:
        """Refuse the scheduler of scrapy-redis, which calls this, by a ConfigurationError."""
        refusal = ConfigurationError(
            "scrapy_ext.BloomDupeFilter serves Scrapy's own scheduler. In place of that of "
            'scrapy-redis set SCHEDULER = "scrapy_ext.Scheduler", or the add-on: '
            'ADDONS = {"scrapy_ext.BloomlockAddon": 500}'
        )
        engine.refuse(spider.crawler, refusal)
        raise refusal

    def open(self) -> None:
        """Read the settings, then create the filter in the server or attach to it.

        Raises:
            BloomlockError: A setting is not usable, another filter is stored under the name, or the
                server cannot be used.
        """
        crawler = self._crawler
        with opening(crawler, "filter") as (config, client):
            if config.options.get("on_full") == "raise":
                raise ConfigurationError(
                    "BLOOMLOCK_FILTER has on_full = 'raise', which needs scrapy_ext.Scheduler; "
                    "allowed here is 'warn'"
                )
            shared = config.open(client, near_cache=NearCache(NEAR_CACHE), on_lost="recreate")
            recorded = shared.count()
        self._config, self._client, self._shared = config, client, shared
        self._generation = shared.generation
        logger.warning(
            "Using the filter %r: about %s requests were recorded in it before. It outlives this "
            "crawl, and a request counts as seen as soon as it is queued. The queue is lost when "
            "the crawl stops before its end, with JOBDIR when it crashes; what is lost counts as "
            'seen until the filter is cleared. With SCHEDULER = "scrapy_ext.Scheduler", which the '
            "add-on sets, nothing is lost.",
            config.name,
            f"{recorded:,}",
        )
        self._offsite = crawler.get_downloader_middleware(OffsiteMiddleware)
        if config.persist:
            logger.warning("BLOOMLOCK_PERSIST has an effect with scrapy_ext.Scheduler only.")
        middleware = crawler.get_spider_middleware(BatchingMiddleware)
        if middleware is not None:
            middleware.checker = self

    def request_seen(self, request: Request) -> bool:
        """Record a request and return whether any process had recorded it before.

        False where `meta["bloomlock_filter"]` is False, and for a redirect that leads back to its
        own request. Never raises: while the server is away, what this process has not let through
        is fetched. Cost: one round trip.
        """
        if request in self._checked:
            self._checked.discard(request)
            return False
        self._count("bloomlock/checked")
        self._count("bloomlock/waits")
        (is_kept,) = self._settle([request], self._ask([self._fingerprint_of(request)]))
        return not (is_kept or leads_back(request, self._fingerprint_of))

    async def check_many(
        self, requests: list[Request], page: Request, *, has_items: bool = False
    ) -> list[bool]:
        """Record the requests of a page ahead of `request_seen`; for the middleware.

        Returns for each whether the engine gets it. Never raises. Cost: one round trip in a thread.
        """
        del page, has_items
        are_asked = [not (one.dont_filter or self._is_offsite(one)) for one in requests]
        asked = list(compress(requests, are_asked))
        if not asked:
            return [True] * len(requests)
        self._count("bloomlock/checked", len(asked))
        keys = [*map(self._fingerprint_of, asked)]
        are_kept = self._settle(asked, await run_in_thread(self._ask, keys))
        self._checked.update(compress(asked, are_kept))
        kept = iter(are_kept)
        return [not is_asked or next(kept) for is_asked in are_asked]

    def log_duplicate(self, request: Request) -> None:
        if self._crawler.spider is not None:
            self.log(request, self._crawler.spider)

    def close(self, reason: str = "") -> None:
        """Put the state of the filter into the stats, and close the connection."""
        del reason
        if (shared := self._shared) is None:
            return
        self._shared = None
        if self._timer is not None:
            self._timer.cancel()
        engine.note_fill(self._crawler, shared)
        shared.close()
        self._client.close()

    def _is_offsite(self, request: Request) -> bool:
        """Return whether the engine will ignore a request, which then must not be recorded."""
        offsite, spider = self._offsite, self._crawler.spider
        if offsite is None or spider is None or request.meta.get("allow_offsite"):
            return False
        return not offsite.should_follow(request, spider)

    def _ask(self, keys: Sequence[bytes]) -> Answers:
        if self._shared is None or self._away_since is not None:
            return None
        try:
            return self._shared.add_many(keys)
        # A raise from here loses every link of the page.
        except Exception as error:  # noqa: BLE001
            return error

    def _settle(self, requests: list[Request], answers: Answers) -> list[bool]:
        """Return for each request whether it is let through."""
        if answers is not None:
            self._count("bloomlock/trips")
        if isinstance(answers, Exception) or self._is_lost():
            self._suspend(answers)
        are_kept = []
        for position, request in enumerate(requests):
            key = self._fingerprint_of(request)
            # A seen request is not noted: if its page lost the reply to the add that recorded it,
            # that page lets it through.
            is_known = key in self._passed
            if isinstance(answers, list):
                # A suspended filter may lack it.
                is_new = answers[position] and not (is_known and self._away_since is not None)
            elif is_new := not is_known:
                self._count("bloomlock/allowed")
            if is_new:
                self._passed.add(key)
            are_kept.append(is_new or request.meta.get("bloomlock_filter") is False)
        return are_kept

    def _is_lost(self) -> bool:
        """Return whether the filter lost its items; one that was cleared on purpose did not."""
        shared = self._shared
        if shared is None or shared.generation == self._generation:
            return False
        self._generation = shared.generation
        if shared.cleared:
            self._passed.clear()
        return not shared.cleared

    def _suspend(self, why: object) -> None:
        """Answer from `_passed` until the filter has those items again."""
        is_away = isinstance(why, Exception)
        if is_away:
            self._count("bloomlock/errors")
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._count("bloomlock/outages")
            logger.error(
                "The filter %r cannot be asked (%s); until then requests that this process has not "
                "let through are fetched.",
                self._config.name,
                f"{type(why).__name__}: {why}" if is_away else "it was lost",
            )
            if is_away and self._config.on_outage == "close":
                engine.close_spider(self._crawler, "bloomlock_outage")
        if self._timer is None and self._shared is not None:
            delay_s = PROBE_S if is_away else 0.0
            recover = partial(self._recover, self._shared, self._away_since)
            self._timer = call_later(delay_s, lambda: deferred_from_coro(recover()))

    async def _recover(self, shared: BloomFilter, since: float) -> None:
        """Add `_passed` to the filter until nothing is missing, then ask it again."""
        given: set[bytes] = set()
        try:
            # The reply tells whether the filter was cleared on purpose, and has discards: an item
            # that was discarded must not come back.
            await run_in_thread(shared.exists, b"bloomlock probe")
            self._is_lost()
            while not shared.has_discards and (new := self._passed.keys() - given):
                await run_in_thread(shared.update, new)
                given |= new
        except Exception as error:  # noqa: BLE001 - as in `_ask`
            self._timer = None
            self._suspend(error)
            return
        self._timer = None
        self._count("bloomlock/refills")
        lasted = time.monotonic() - since
        logger.warning("The filter %r is asked again after %.1f s.", shared.name, lasted)
        self._away_since = None
