"""Pages that gave an item, kept from one crawl to the next: what BLOOMLOCK_PERSIST is about."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from scrapy_ext.engine import run_in_thread

if TYPE_CHECKING:
    from scrapy import Request
    from twisted.internet.defer import Deferred

    from bloomlock import BloomFilter
    from scrapy_ext.fingerprints import Fingerprints

logger = logging.getLogger("bloomlock.scrapy")

MOST_WAITING = 1000


class Delivered:
    """The pages that gave an item and did not fail, in this crawl and in those before.

    A page that is recorded is no start page, sitemap or list without items, so those are fetched in
    each crawl. A page counts when the scheduler is done with it. One whose record is lost with its
    process is fetched again by the next crawl.
    """

    def __init__(self, shared: BloomFilter, fingerprints: Fingerprints) -> None:
        self._shared = shared
        self._fingerprints = fingerprints
        self._gave: WeakSet[Request] = WeakSet()
        self._waiting: list[bytes] = []
        self._writing: Deferred[None] | None = None
        self._has_warned = False

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

    async def are_there(self, requests: list[Request]) -> list[bool]:
        """Return for each request whether it leads to a page that is recorded.

        Cost: a round trip, in a thread. If the server does not answer, none is.
        """
        keys = [self._fingerprints.of(request) for request in requests]
        try:
            return await run_in_thread(partial(self._shared.exists_many, keys))
        except Exception as error:  # noqa: BLE001 - the pages are fetched, which loses nothing
            self._warn(error)
            return [False] * len(requests)

    async def close(self) -> None:
        """Write what waits, and let the filter go."""
        if self._writing is not None:
            await maybe_deferred_to_future(self._writing)
        await self._write()
        self._shared.close()

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
