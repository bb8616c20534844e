"""What is logged and counted of duplicates, as Scrapy's own filter does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.utils.request import referer_str

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")


class DuplicateLog:
    """Logs the first duplicate of a crawl, or each, and counts them all.

    Args:
        crawler: Whose stats count them.
        debug: Whether each is logged, with its referer.
    """

    def __init__(self, crawler: Crawler, *, debug: bool = False) -> None:
        self._crawler = crawler
        self._debug = debug
        self._is_first = True

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that was filtered, and count it."""
        if self._debug:
            message = "Filtered duplicate request: %(request)s (referer: %(referer)s)"
            values = {"request": request, "referer": referer_str(request)}
            logger.debug(message, values, extra={"spider": spider})
        elif self._is_first:
            self._is_first = False
            message = (
                "Filtered duplicate request: %(request)s - no more duplicates will be shown "
                "(see DUPEFILTER_DEBUG to show all duplicates)"
            )
            logger.debug(message, {"request": request}, extra={"spider": spider})
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value("dupefilter/filtered")
