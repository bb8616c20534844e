"""What is logged, counted and kept of duplicates; the first two as Scrapy's own filter does."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from scrapy.utils.request import referer_str

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")


class DuplicateLog:
    """Logs the first duplicate of a crawl, or each, counts them all, and keeps a sample.

    The sample is the stat `bloomlock/refused_sample`, a list: each duplicate is in it with the same
    probability.

    Args:
        crawler: Whose stats count them.
        debug: Whether each is logged, with its referer.
        sample: How many URLs are kept at most.
    """

    def __init__(self, crawler: Crawler, *, debug: bool = False, sample: int = 0) -> None:
        self._crawler = crawler
        self._debug = debug
        self._is_first = True
        self._num_logged = 0
        self._sample: list[str] = []
        self._sample_size = sample

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that was filtered, and count it."""
        self.note(request, spider)
        self.count(1)

    def count(self, number: int) -> None:
        """Count requests that were filtered."""
        stats = self._crawler.stats
        if stats is not None:
            stats.inc_value("dupefilter/filtered", number)

    def note(self, request: Request, spider: Spider) -> None:
        """Log a request that was filtered, and keep it if it is of the sample."""
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
        if self._sample_size:
            self._keep(request.url)

    def _keep(self, url: str) -> None:
        """Keep a URL, in the place of a random one if there is no free one, or leave it."""
        place = self._num_logged
        self._num_logged += 1
        if place >= self._sample_size:
            place = random.randrange(self._num_logged)
        if place < self._sample_size:
            self._sample[place : place + 1] = [url]
        if self._num_logged == 1 and self._crawler.stats is not None:
            self._crawler.stats.set_value("bloomlock/refused_sample", self._sample)
