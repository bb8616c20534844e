"""The duplicates filter for Scrapy's own scheduler, shared by all processes of a spider.

It always answers, with or without its server.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import WeakSet

from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro

from bloomlock import NearCache
from bloomlock.errors import ConfigurationError
from scrapy_ext import engine
from scrapy_ext.connection import opening
from scrapy_ext.engine import run_in_thread
from scrapy_ext.fingerprints import Fingerprints, RecentFingerprints
from scrapy_ext.middleware import BatchingMiddleware
from scrapy_ext.settings import only_looks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.utils.asyncio import CallLaterResult

    from bloomlock import BloomFilter

logger = logging.getLogger("bloomlock.scrapy")

NEAR_CACHE = 100_000
"""Requests known as seen, of which the server is not asked: nine links of ten are repeats."""
PROBE_S = 1.0
"""While the server is away it is tried this often."""

IS_LOST = (
    "The filter %r outlives this crawl, and a request counts as seen as soon as it is queued. The "
    "queue is lost when the crawl stops before its end, with JOBDIR when it crashes; what is lost "
    "counts as seen until the filter is cleared. With SCHEDULER = "
    '"scrapy_ext.Scheduler", which the add-on sets, nothing is lost.'
)


class BloomDupeFilter(BaseDupeFilter):
    """Asks one Bloom filter in Redis whether any process of the spider has seen a request.

    Set `DUPEFILTER_CLASS = "scrapy_ext.BloomDupeFilter"` to keep Scrapy's own scheduler, and
    `BatchingMiddleware` beside it. The filter outlives the crawl; what was queued and not fetched
    when a process dies counts as seen.
    """

    def __init__(self, crawler: Crawler) -> None:
        """Keep the crawler; its settings are read by `open`."""
        self._crawler = crawler
        # It logs and counts duplicates, and holds none.
        self._log = RFPDupeFilter(debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        self._guard: Guard | None = None
        self._count: Any = crawler.stats.inc_value
        self._fingerprints = Fingerprints(crawler)
        # What the middleware has checked, on its way to `request_seen`.
        self._checked: WeakSet[Request] = WeakSet()
        self._offsite: OffsiteMiddleware | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self | RFPDupeFilter:  # type: ignore[override]
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
        close = partial(engine.close_spider, crawler) if config.on_outage == "close" else None
        self._client = client
        self._guard = Guard(shared, self._count, close)
        logger.info(
            "Using the filter %r: about %s requests were recorded in it before.",
            config.name,
            f"{recorded:,}",
        )
        logger.warning(IS_LOST, config.name)
        self._offsite = crawler.get_downloader_middleware(OffsiteMiddleware)
        if config.persist:
            logger.warning("BLOOMLOCK_PERSIST has an effect with scrapy_ext.Scheduler only.")
        middleware = crawler.get_spider_middleware(BatchingMiddleware)
        if middleware is not None:
            middleware.checker = self

    def request_seen(self, request: Request) -> bool:
        """Record a request and return whether any process had recorded it before.

        False where `meta["bloomlock_filter"]` is False, and for a redirect that leads back to its
        own request. Never raises: while the server is away, what this process has not seen is
        fetched. Cost: one round trip.
        """
        if self._guard is None:
            return True  # `open` failed, was logged, and stops the crawl
        if request in self._checked:
            self._checked.discard(request)
            return False
        self._count("bloomlock/checked")
        is_new = self._guard.check(self._fingerprints.of(request))
        return not (is_new or _is_wanted(request) or self._fingerprints.leads_back(request))

    async def check_many(self, requests: list[Request], page: Request) -> list[bool]:
        """Record the requests of a page ahead of `request_seen`; for the middleware.

        Returns for each whether the engine gets it. Never raises. Cost: one round trip in a thread.
        """
        del page
        if self._guard is None:
            return [True] * len(requests)
        are_asked = [not (one.dont_filter or self._is_offsite(one)) for one in requests]
        asked = list(compress(requests, are_asked))
        self._count("bloomlock/checked", len(asked))
        answers = await self._guard.check_many([self._fingerprints.of(one) for one in asked])
        are_kept = [is_new or _is_wanted(one) for one, is_new in zip(asked, answers, strict=True)]
        self._checked.update(compress(asked, are_kept))
        kept = iter(are_kept)
        return [not is_asked or next(kept) for is_asked in are_asked]

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that was filtered, and count it."""
        self._log.log(request, spider)

    def log_duplicate(self, request: Request) -> None:
        if self._crawler.spider is not None:
            self.log(request, self._crawler.spider)

    def gave_item(self, page: Request) -> None:
        """Do nothing: what pages give is of use to BLOOMLOCK_PERSIST alone."""

    def close(self, reason: str = "") -> None:
        """Put the state of the filter into the stats, and close the connection."""
        del reason
        if self._guard is None:
            return
        self._guard.stop()
        try:
            engine.note_fill(self._crawler, self._guard.shared.info())
        # BLE001: an error here would hide how the crawl ended.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "The filter %r was not closed in order: %s", self._guard.shared.name, error
            )
        self._guard.shared.close()
        self._client.close()
        self._guard = None

    def _is_offsite(self, request: Request) -> bool:
        """Return whether the engine will ignore a request, which then must not be recorded."""
        offsite, spider = self._offsite, self._crawler.spider
        if offsite is None or spider is None or request.meta.get("allow_offsite"):
            return False
        return not offsite.should_follow(request, spider)


def _is_wanted(request: Request) -> bool:
    """Return whether a request is fetched though it is seen."""
    return request.meta.get("bloomlock_filter") is False


class Guard:
    """Records keys in the shared filter and says which are new. Its checks never raise.

    What this process was answered, it knows. While the server is away, a key that it does not
    know is let through, and given to the filter later. A filter that comes back without its
    content, or with that of an earlier moment, is given what this process knows; not where items
    are discarded, which shall not come back. `close` closes the spider where that is the policy.
    All is called in the reactor's thread.
    """

    def __init__(
        self, shared: BloomFilter, count: Any, close: Callable[[str], None] | None
    ) -> None:
        self.shared = shared
        self._count = count
        self._close = close
        self._generation = shared.generation
        self._known = RecentFingerprints()
        # How many keys were let through that the server has not answered.
        self._allowed = 0
        # Pages that wait for their round trip.
        self._under_way = 0
        self._away_since: float | None = None
        # The filter may lack what it had. Until it was given that, its "new" is not believed.
        self._may_lack = False
        self._is_stopped = False
        self._timer: CallLaterResult | None = None

    def check(self, key: bytes) -> bool:
        """Record a key and return whether it was new; the reactor waits for the round trip."""
        self._count("bloomlock/waits")
        return self._settle([key], *self._ask([key]))[0]

    async def check_many(self, keys: Sequence[bytes]) -> list[bool]:
        """Record keys and return for each whether it was new; of equal ones the first is."""
        if not keys:
            return []
        self._under_way += 1
        try:
            found = await run_in_thread(partial(self._ask, keys))
        finally:
            self._under_way -= 1
        return self._settle(keys, *found)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self, keys: Sequence[bytes]) -> tuple[list[bool | None], Exception | None]:
        try:
            if self._away_since is None:
                return [*self.shared.add_many(keys)], None
        # A raise from here loses every link of the page.
        except Exception as error:  # noqa: BLE001
            return [None] * len(keys), error
        return [None] * len(keys), None

    def _settle(
        self, keys: Sequence[bytes], answers: Sequence[bool | None], error: Exception | None
    ) -> list[bool]:
        self._note(error)
        are_new = []
        for key, answer in zip(keys, answers, strict=True):
            is_known = key in self._known
            is_lacking = is_known and self._may_lack and not self.shared.has_discards
            is_new = not is_known if answer is None else answer and not is_lacking
            if is_new and answer is None:
                self._count("bloomlock/allowed")
                self._allowed += 1
            # What is found seen while a page is under way may be what that one has recorded, and if
            # its reply is lost it must let it through.
            if is_new or (answer is not None and not self._under_way):
                self._known.add(key)
            are_new.append(is_new)
        return are_new

    def _note(self, error: Exception | None) -> None:
        if self._away_since is None:
            self._count("bloomlock/trips")
            if error is None:
                self._follow()
        if error is None:
            return
        self._count("bloomlock/errors")
        self._may_lack = True
        self._recover_in(PROBE_S)
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._count("bloomlock/outages")
            logger.error(
                "The filter %r cannot be asked (%s: %s); until then requests that this process has "
                "not seen are fetched.",
                self.shared.name,
                type(error).__name__,
                error,
            )
            if self._close is not None:
                self._close("bloomlock_outage")

    def _follow(self) -> None:
        # Another generation is one that was emptied on purpose, or made for a lost one.
        if self.shared.generation == self._generation:
            return
        self._generation = self.shared.generation
        if self.shared.cleared:
            self._known.clear()
        else:
            self._may_lack = True
            self._recover_in(0.0)

    def _recover_in(self, seconds: float) -> None:
        if self._timer is None and not self._is_stopped:
            self._timer = call_later(seconds, lambda: deferred_from_coro(self._recover()))

    async def _recover(self) -> None:
        allowed = self._allowed
        try:
            await run_in_thread(partial(self.shared.exists, b"bloomlock probe"))
            # The answer tells whether the filter was cleared on purpose, and has discards.
            self._follow()
            if not self.shared.has_discards:
                await run_in_thread(partial(self.shared.update, [*self._known]))
        except Exception as error:  # noqa: BLE001 - as in `_ask`
            self._timer = None
            self._note(error)
            return
        self._timer = None
        # Something more may have been let through.
        self._may_lack = self._allowed > allowed
        self._count("bloomlock/refills")
        if self._away_since is not None:
            lasted = time.monotonic() - self._away_since
            self._away_since = None
            logger.warning("The filter %r answers again after %.1f s.", self.shared.name, lasted)
        if self._may_lack:
            self._recover_in(0.0)
