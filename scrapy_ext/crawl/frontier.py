"""What a job keeps in Redis beside the filter: the queue, and which workers have pages in flight.

The job is over when the queue is empty and no worker has a page in flight. Both are read in one
transaction. A worker marks itself busy in the transaction that takes a page, and idle only with
everything it found on its pages queued. So the end is never announced early, and a worker that
died can be left out by removing its field.
"""

from __future__ import annotations

import json
import logging
import uuid
from typing import TYPE_CHECKING, Any, Self

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy import Request, signals
from scrapy.utils.request import fingerprint
from scrapy_redis.queue import FifoQueue
from scrapy_redis.scheduler import Scheduler

from bloomlock.server import explained, find_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_ext.crawl.stats import Journal

logger = logging.getLogger("bloomlock.crawl")

_STORED = ("url", "callback", "errback", "meta", "priority", "dont_filter")
_WAKE = "wake"
_SECONDS = 3.0
_AT_ONCE = 1_000


class Frontier:
    """The queue and the workers' state."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self.client = client
        self._run = uuid.uuid4().hex[:12]
        self.queue = ""
        self.busy = f"bloomlock:crawl:{self._run}:busy"

    @classmethod
    def connect(cls, url: str | None) -> Self:
        """Connect to the server."""
        address = find_address(url, name="url")
        with explained(address):
            client = redis.Redis.from_url(
                address.url,
                socket_timeout=_SECONDS,
                socket_connect_timeout=_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
            client.ping()
        return cls(address.url, client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def open_queue(self, name: str, workers: int) -> None:
        """Take a filter's queue, with what an earlier job left in it; all workers count as busy."""
        self.queue = f"bloomlock:crawl:{name}:queue"
        self.client.hset(self.busy, mapping=dict.fromkeys(map(str, range(workers)), 1))

    def leave_out(self, worker: int) -> None:
        """Do not wait for a worker that has ended."""
        self.client.hdel(self.busy, str(worker))

    def state(self) -> tuple[int, bool]:
        """Return how many pages are queued, and whether the crawl is over. One round trip."""
        with self.client.pipeline(transaction=True) as transaction:
            transaction.llen(self.queue)
            transaction.hvals(self.busy)
            queued, in_flight = transaction.execute()
        return queued, queued == 0 and all(int(each) == 0 for each in in_flight)

    def queued_fingerprints(self) -> set[str]:
        """Return the fingerprints of what is in the queue."""
        return {fingerprint(Request(loads(stored)["url"])).hex() for stored in self._stored()}

    def _stored(self) -> Iterator[Any]:
        for first in range(0, int(self.client.llen(self.queue)), _AT_ONCE):
            yield from self.client.lrange(self.queue, first, first + _AT_ONCE - 1)

    def memory_of_exact_set(self, fingerprints: list[str]) -> int | None:
        """Return the bytes of a set of them as scrapy-redis makes it; None: not known."""
        key = f"bloomlock:crawl:{self._run}:exact"
        try:
            for first in range(0, len(fingerprints), _AT_ONCE):
                self.client.sadd(key, *fingerprints[first : first + _AT_ONCE])
            size = self.client.memory_usage(key, samples=0)
        except redis.exceptions.ResponseError:
            return None
        finally:
            self.client.delete(key)
        return size if size is None else int(size)

    def close_queue(self, *, keep: bool) -> None:
        """Delete what the job made; the queue only if the filter goes too."""
        self.client.delete(self.busy, *(() if keep or not self.queue else (self.queue,)))


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
    """First in, first out; marks workers as busy and idle."""

    def pop(self, timeout: int = 0) -> Request | None:
        """Take the oldest request, if any. One round trip; waiting would block the reactor."""
        del timeout
        with self.server.pipeline(transaction=True) as transaction:
            transaction.hset(*self.spider.in_flight, 1)
            transaction.rpop(self.key)
            stored = transaction.execute()[1]
        return self._decode_request(stored) if stored else None

    def mark_idle(self) -> None:
        """Say that this worker has no page in flight."""
        self.server.hset(*self.spider.in_flight, 0)


class CrawlScheduler(Scheduler):  # type: ignore[misc] # as above
    """The scheduler of scrapy-redis, keeping the worker's journal."""

    journal: Journal

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CrawlScheduler:
        """Make the scheduler of a worker."""
        self: CrawlScheduler = super().from_crawler(crawler)
        self._fingerprinter = crawler.request_fingerprinter
        crawler.signals.connect(self._mark_idle, signal=signals.spider_idle)
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
        """Return the next request, or None; the job notices a server that fails."""
        try:
            request: Request | None = super().next_request()
        except redis.exceptions.RedisError as error:
            logger.warning("The queue cannot be read: %s", error)
            return None
        return request

    def _mark_idle(self) -> None:
        # Idle means that all pages taken are done and every link on them went through here.
        self.queue.mark_idle()
