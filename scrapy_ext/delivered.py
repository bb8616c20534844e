"""Pages that gave an item, kept from one crawl to the next: what BLOOMLOCK_PERSIST is about."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from scrapy_ext.connection import redis_client
from scrapy_ext.fingerprints import Fingerprints
from scrapy_ext.threads import run_in_thread

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from bloomlock import BloomFilter
    from scrapy_ext.settings import CrawlSettings

logger = logging.getLogger("bloomlock.scrapy")

MOST_WAITING = 1000


class Delivered:
    """The pages that gave an item and did not fail, in this crawl and in those before.

    A page that is recorded is no start page, sitemap or list without items, so those are fetched in
    each crawl. A page counts when the scheduler is done with it. One whose record is lost with its
    process is fetched again by the next crawl.

    Args:
        crawler: The crawler.
        shared: The filter.
        client: Its client, which `close` closes.
    """

    def __init__(self, crawler: Crawler, shared: BloomFilter, client: Any) -> None:
        self._shared = shared
        self._client = client
        self._stats = crawler.stats
        self._fingerprints = Fingerprints(crawler)
        self._gave: WeakSet[Request] = WeakSet()
        self._waiting: list[bytes] = []
        self._writing: Deferred[None] | None = None
        self._has_warned = False

    @classmethod
    def open(cls, crawler: Crawler, settings: CrawlSettings) -> Self:
        """Attach to the filter that BLOOMLOCK_NAME and BLOOMLOCK_WINDOW say.

        Raises:
            BloomlockError: As for the filter of the crawl.
        """
        client = redis_client(crawler.settings, settings.timeout)
        name = f"{settings.name}:delivered"
        return cls(crawler, settings.open(client, name=name, window=True), client)

    def gave_item(self, page: Request) -> None:
        """Note that a page gave an item, or that its callback kept what it found by itself."""
        self._gave.add(page)

    def done(self, page: Request) -> None:
        """Record a page that is done and did not fail, if it gave an item."""
        if page not in self._gave:
            return
        # A link leads to the page that redirected here.
        earlier = [page.replace(url=url) for url in page.meta.get("redirect_urls", ())]
        self._waiting += map(self._fingerprints.of, (page, *earlier))
        if len(self._waiting) >= MOST_WAITING and self._writing is None:
            self._writing = deferred_from_coro(self._write())

    async def are_new(self, requests: list[Request]) -> list[bool]:
        """Return for each request whether it leads to no page that is recorded.

        Cost: a round trip, in a thread. If the server does not answer, all are new.
        """
        asked = [
            not request.dont_filter and request.meta.get("bloomlock_filter") is not False
            for request in requests
        ]
        keys = [self._fingerprints.of(request) for request in requests]
        try:
            are_recorded = await run_in_thread(partial(self._shared.exists_many, keys))
        except Exception as error:  # noqa: BLE001 - the pages are fetched, which loses nothing
            self._warn(error)
            return [True] * len(requests)
        are_new = [not (a and known) for a, known in zip(asked, are_recorded, strict=True)]
        if self._stats is not None:
            self._stats.inc_value("bloomlock/delivered_before", are_new.count(False))
        return are_new

    async def close(self) -> None:
        """Write what waits, and let the filter go."""
        if self._writing is not None:
            await maybe_deferred_to_future(self._writing)
        await self._write()
        self._shared.close()
        self._client.close()

    async def _write(self) -> None:
        keys, self._waiting = self._waiting, []
        try:
            if keys:
                await run_in_thread(partial(self._shared.update, keys))
        except Exception as error:  # noqa: BLE001 - it is tried again with the next ones
            self._waiting += keys
            self._warn(error)
        finally:
            self._writing = None

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "The filter %r of delivered pages cannot be used (%s: %s); pages that it has may "
                "be fetched again.",
                self._shared.name,
                type(error).__name__,
                error,
            )
