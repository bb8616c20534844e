"""The scheduler and queue of scrapy-redis, with what the job has to know about them.

The job is over when the queue is empty and no worker has a page in hand. Both are read in one
transaction; a worker says that it has a page in hand in the transaction that takes the page, and
takes that back only when it is idle, with everything it found on its pages queued. So the end is
never announced early, and a worker that died can be left out by removing its field.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import redis.exceptions
from scrapy import Request, signals
from scrapy_redis.queue import FifoQueue
from scrapy_redis.scheduler import Scheduler

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_ext.crawl.journal import Journal

logger = logging.getLogger("bloomlock.crawl")

_STORED = ("url", "callback", "errback", "meta", "priority", "dont_filter")
_WAKE = "wake"


def wake_up() -> Request:
    """Return a request that makes the engine look into the queue; it is never queued itself."""
    return Request("data:,", flags=[_WAKE], dont_filter=True)


def dumps(request: dict[str, Any]) -> str:
    """Serialize what matters of a plain GET request; unlike pickle it cannot be executed."""
    return json.dumps({name: request[name] for name in _STORED})


def loads(stored: bytes | str) -> dict[str, Any]:
    """Return the request that `dumps` serialized, as `Request.from_dict` takes it."""
    request = json.loads(stored)
    return {name: request[name] for name in _STORED}


class SharedQueue(FifoQueue):  # type: ignore[misc] # scrapy_redis ships no types
    """First in, first out; tells who has pages in hand."""

    def pop(self, timeout: int = 0) -> Request | None:
        """Take the oldest request, if there is one. One round trip.

        Args:
            timeout: Not used: waiting here would block the reactor.
        """
        del timeout
        with self.server.pipeline(transaction=True) as transaction:
            transaction.hset(*self.spider.in_flight, 1)
            transaction.rpop(self.key)
            stored = transaction.execute()[1]
        return self._decode_request(stored) if stored else None

    def rest(self) -> None:
        """Say that this worker has no page in hand."""
        self.server.hset(*self.spider.in_flight, 0)


class CrawlScheduler(Scheduler):  # type: ignore[misc] # as above
    """The scheduler of scrapy-redis, keeping the worker's journal."""

    journal: Journal

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CrawlScheduler:
        """Make the scheduler of a worker."""
        self: CrawlScheduler = super().from_crawler(crawler)
        self._fingerprinter = crawler.request_fingerprinter
        crawler.signals.connect(self._rest, signal=signals.spider_idle)
        return self

    def open(self, spider: Spider) -> None:
        """Open the queue and the filter; the spider brings the journal."""
        self.journal = spider.journal  # type: ignore[attr-defined] # set by SiteSpider
        super().open(spider)

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request unless any worker has seen it; count and note what became of it."""
        if _WAKE in request.flags:
            return True
        accepted = bool(super().enqueue_request(request))
        if request.dont_filter:  # a retry of a page that was checked before
            return accepted
        self.journal.checked += 1
        if accepted:
            self.journal.won(self._fingerprinter.fingerprint(request), request.url)
        else:
            self.journal.duplicates += 1
        return accepted

    def next_request(self) -> Request | None:
        """Return the next request, or None; a server that fails is the job's to notice."""
        try:
            request: Request | None = super().next_request()
        except redis.exceptions.RedisError as error:
            logger.warning("The queue cannot be read: %s", error)
            return None
        return request

    def _rest(self) -> None:
        # Idle means that all pages taken are done and every link on them went through here.
        self.queue.rest()
