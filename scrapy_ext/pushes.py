"""Requests on their way into the shared queue, and what becomes of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from scrapy import signals
from scrapy.utils.request import fingerprint as default_fingerprint

from scrapy_ext.duplicates import DuplicateLog
from scrapy_ext.request_queue import Push

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_ext.request_queue import RequestQueue
    from scrapy_ext.settings import FilterSettings

logger = logging.getLogger("bloomlock.scrapy")


class Pushes:
    """Makes pushes of requests, and says to Scrapy what the server answered.

    Args:
        crawler: Whose requests they are.
        spider: Its spider.
        queue: Where they go.
        config: The settings of the filter.
    """

    def __init__(
        self, crawler: Crawler, spider: Spider, queue: RequestQueue, config: FilterSettings
    ) -> None:
        self._crawler = crawler
        self._spider = spider
        self._queue = queue
        self._config = config
        # Messages of a feed are wanted each time they come, the start page of a crawl once.
        self._is_feed = hasattr(spider, "redis_key")
        self._log = DuplicateLog(crawler, debug=config.debug)
        self._logged: set[str] = set()

    def make(self, request: Request, fingerprint: bytes, begun: Iterable[bytes]) -> Push:
        """Return the push of a request.

        Args:
            request: The request.
            fingerprint: Its fingerprint.
            begun: The fingerprints of requests that the engine has not done.
        """
        mode = self._mode_of(request, fingerprint, begun)
        return Push(request, fingerprint, mode, self._encode(request))

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint by the crawler's own fingerprinter; another one if that fails."""
        try:
            # The view refuses what is not bytes; bytes(5) would be five zeros.
            return bytes(memoryview(self._crawler.request_fingerprinter.fingerprint(request)))
        # A project's fingerprinter may raise anything; the links of the page shall not pay for it.
        except Exception:
            self.count("bloomlock/fingerprint_errors")
            if "fingerprint" not in self._logged:
                self._logged.add("fingerprint")
                logger.exception("The request fingerprinter failed for %s", request)
            return b"no fingerprint:" + default_fingerprint(request)

    def refused(self, request: Request) -> None:
        """Log and count a duplicate."""
        self._log.log(request, self._spider)

    def answered(self, push: Push, *, was_pushed: bool) -> None:
        """Say what became of a push."""
        if was_pushed:
            self.count(f"scheduler/enqueued/{'redis' if push.data else 'memory'}")
            self.count("scheduler/enqueued")
            return
        self.refused(push.request)
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=push.request, spider=self._spider
        )

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the stats."""
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(name, by)

    def _mode_of(
        self, request: Request, fingerprint: bytes, begun: Iterable[bytes]
    ) -> Literal["n", "a", "r", "s"]:
        """Return when a request is pushed; see Push."""
        meta = request.meta
        is_again = "retry_times" in meta or "redirect_times" in meta
        if is_again and fingerprint in begun:
            return "a"  # the same page once more: a retry, or a redirect to itself
        if not request.dont_filter:
            return "n"
        if meta.get("depth"):
            return "r" if self._config.record_unfiltered else "a"
        is_start = meta.get("is_start_request") and not is_again and not self._is_feed
        return "s" if is_start else "r"

    def _encode(self, request: Request) -> bytes:
        """Return a request as it stands in the queue; empty if it has no such form."""
        try:
            return self._queue.encode(request)
        # BLE001: a serializer of the project's may raise anything.
        except Exception as error:  # noqa: BLE001
            self.count("scheduler/unserializable")
            if "unserializable" not in self._logged:
                self._logged.add("unserializable")
                logger.warning(
                    "Unable to serialize request: %s - reason: %s - it stays in this process and "
                    "is lost with it; no more unserializable requests are logged.",
                    request,
                    error,
                )
            return b""
