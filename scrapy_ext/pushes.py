"""Requests on their way into the shared queue, and what becomes of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.utils.request import fingerprint as default_fingerprint

from scrapy_ext.controls import BEGUN, FILTER, RECORD, RequestControls, returns
from scrapy_ext.duplicates import DuplicateLog
from scrapy_ext.request_queue import Push

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_ext.request_queue import Mode, RequestQueue
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
        self._controls = RequestControls(crawler, record_unfiltered=config.record_unfiltered)
        # Messages of a feed are wanted each time they come, the start page of a crawl once.
        self._is_feed = hasattr(spider, "redis_key")
        self._log = DuplicateLog(crawler, debug=config.debug, sample=config.audit_sample)
        self._logged: set[str] = set()

    def make(self, request: Request, fingerprint: bytes, mode: Mode) -> Push:
        """Return the push of a request."""
        return Push(request, fingerprint, mode, self._encode(request, mode))

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

    def note_refused(self, request: Request) -> None:
        """Log a duplicate that the caller counts."""
        self._log.note(request, self._spider)

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

    def mode_of(self, request: Request) -> Mode:
        """Return when a request is pushed."""
        meta = request.meta
        is_filtered, recorded = self._controls.read(request)
        if not request.dont_filter:
            is_back = returns(request, self._crawler, self.fingerprint)
            if is_filtered and not is_back:
                return "n" if recorded else "e"
            return "r" if recorded else "a"
        # A start request is recorded in any case. Nothing else says of the requests of a feed that
        # they are some, but that no callback made them.
        is_start = (meta.get("is_start_request") or self._is_feed) and not meta.get("depth")
        # What its errback makes of it, or a callback of a copy of its `meta`, is another one.
        is_first = not meta.get(BEGUN)
        is_again = "retry_times" in meta or "redirect_times" in meta
        is_recorded = recorded or (is_start and (is_first or is_again))
        if meta.get(RECORD) is False or not is_recorded:
            return "a"
        is_once = is_start and is_first and not (is_again or self._is_feed)
        return "s" if is_once and meta.get(FILTER) is not False else "r"

    def begun(self, request: Request) -> None:
        """Note that a request is fetched."""
        if request.meta.get("is_start_request"):
            request.meta[BEGUN] = True

    def _encode(self, request: Request, mode: Mode) -> bytes:
        """Return a request as it stands in the queue; empty if it has no such form."""
        try:
            return self._queue.encode(request, mode)
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
