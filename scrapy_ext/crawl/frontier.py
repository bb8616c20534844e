"""The queue of a job: what waits, what is being fetched, and by which workers.

A worker takes a page under a lease, and the page stays on the server until its callback is done and
the links that it found are queued, in one step with their test by the filter. The job is over when
nothing waits and nothing is taken, which are read in one transaction. So the end is never announced
early. What a worker had that is known to be dead is put back by the job at once.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock.server import explained, find_address
from scrapy_ext.request_queue import keys_of, release
from scrapy_ext.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy import Spider

    from bloomlock import BloomFilter
    from scrapy_ext.crawl.stats import Journal
    from scrapy_ext.request_queue import Push

_STORED = ("url", "callback", "errback", "meta", "priority", "dont_filter")
_SECONDS = 3.0
_AT_ONCE = 1_000


class QueueState(NamedTuple):
    """How the queue is.

    Attributes:
        waiting: Pages that wait.
        taken: Pages that workers have and have not done.
        workers: The workers whose leases last, of this job and of others.
    """

    waiting: int
    taken: int
    workers: list[str]


class Frontier:
    """The queue of one job, as the job sees it."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self.client = client
        self.queue = ""

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

    def open_queue(self, name: str) -> None:
        """Take a filter's queue, with what an earlier job left in it."""
        self.queue = f"bloomlock:crawl:{name}:queue"

    def state(self) -> QueueState:
        """Return how the queue is. One round trip."""
        queue, taken, workers, *_ = keys_of(self.queue)
        with self.client.pipeline(transaction=True) as transaction:
            transaction.llen(queue)
            transaction.hlen(taken)
            transaction.zrange(workers, 0, -1, withscores=True)
            transaction.time()
            num_waiting, num_taken, leases, (seconds, _) = transaction.execute()
        last = [name.decode() for name, end_ms in leases if end_ms >= seconds * 1000]
        return QueueState(num_waiting, num_taken, last)

    def release(self, shared: BloomFilter, dead: Sequence[str]) -> set[str]:
        """Put back what dead workers had; return the fingerprints of the pages."""
        if not dead:
            return set()
        return _fingerprints(release(shared, self.queue, "fifo", dead))

    def queued_fingerprints(self) -> set[str]:
        """Return the fingerprints of what is in the queue."""
        return _fingerprints(self._stored())

    def _stored(self) -> Iterator[Any]:
        for first in range(0, int(self.client.llen(self.queue)), _AT_ONCE):
            yield from self.client.lrange(self.queue, first, first + _AT_ONCE - 1)

    def memory_of_exact_set(self, fingerprints: list[str]) -> int | None:
        """Return the bytes of a set of them as scrapy-redis makes it; None: not known."""
        key = f"bloomlock:crawl:{uuid.uuid4().hex[:12]}:exact"
        try:
            for first in range(0, len(fingerprints), _AT_ONCE):
                self.client.sadd(key, *fingerprints[first : first + _AT_ONCE])
            size = self.client.memory_usage(key, samples=0)
        except redis.exceptions.ResponseError:
            return None
        finally:
            self.client.delete(key)
        return size if size is None else int(size)

    def delete_queue(self) -> None:
        """Delete the queue and what belongs to it."""
        if self.queue:
            self.client.delete(*keys_of(self.queue))


def _fingerprints(stored: Iterable[bytes]) -> set[str]:
    return {fingerprint(Request(loads(each)["url"])).hex() for each in stored}


def dumps(request: dict[str, Any]) -> str:
    """Serialize what matters of a plain GET request; unlike pickle it cannot be executed."""
    return json.dumps({name: request[name] for name in _STORED})


def loads(stored: bytes | str) -> dict[str, Any]:
    """Return the request that `dumps` serialized, as `Request.from_dict` takes it."""
    request = json.loads(stored)
    return {name: request[name] for name in _STORED}


class CrawlScheduler(Scheduler):
    """The scheduler that processes share, keeping the worker's journal."""

    _journal: Journal

    def open(self, spider: Spider) -> None:
        """Open the queue and the filter; the spider brings the journal."""
        # Both are set by SiteSpider.
        self._journal = spider.journal  # type: ignore[attr-defined]
        self._worker = spider.worker  # type: ignore[attr-defined]
        super().open(spider)

    def enqueue_request(self, request: Request) -> bool:
        """Take a request; count it if it is known to be a duplicate."""
        accepted = super().enqueue_request(request)
        if not accepted:
            self._journal.checked += 1
            self._journal.duplicates += 1
        return accepted

    def _answered(self, push: Push, *, was_pushed: bool) -> None:
        """Count and note what became of a link; a retry is none."""
        super()._answered(push, was_pushed=was_pushed)
        if push.request.dont_filter:
            return
        self._journal.checked += 1
        if was_pushed:
            self._journal.won(push.fingerprint, push.request.url)
        else:
            self._journal.duplicates += 1
