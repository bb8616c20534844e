"""Duplicates: what is logged, counted and kept of them, and whether the engine need get them.

For each the engine sends two signals, one before its scheduler asks the duplicates filter and one
after. On pages of 185 links, nearly all of them duplicates, that is a tenth of a crawl's processor
time.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import signals
from scrapy.core.engine import ExecutionEngine
from scrapy.core.scheduler import Scheduler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.utils.request import referer_str

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter

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


def asks_only(engine: Any, dupefilter: BaseDupeFilter) -> bool:
    """Return whether all that becomes of a duplicate in the engine is what its filter does.

    (Scrapy has no public way to ask for the scheduler.)
    """
    scheduler = getattr(getattr(engine, "_slot", None), "scheduler", None)
    return (
        type(engine) is ExecutionEngine
        and isinstance(scheduler, Scheduler)
        and type(scheduler).enqueue_request is Scheduler.enqueue_request
        and scheduler.df is dupefilter
    )


def are_unheard(crawler: Crawler, deaf: Collection[Any]) -> bool:
    """Return whether only some receivers get the signals of a duplicate.

    Args:
        crawler: Whose signals they are.
        deaf: Receivers to which a duplicate makes no difference.
    """
    sender = crawler.signals.sender
    return all(
        receiver in deaf
        for signal in (signals.request_scheduled, signals.request_dropped)
        for receiver in liveReceivers(getAllReceivers(sender, signal))
    )


def receivers_of(offsite: OffsiteMiddleware | None) -> list[Any]:
    """Return the receivers of Scrapy's own middleware, which let a request on site be."""
    if offsite is None:
        return []
    kind, own = type(offsite), OffsiteMiddleware
    # The one calls the other.
    is_own = kind.request_scheduled is own.request_scheduled and (
        kind.process_request is own.process_request
    )
    return [offsite.request_scheduled] if is_own else []
