"""What the job keeps in Redis beside the filter: the queue, and who has pages in hand."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Self

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock.server import explained, find_address
from scrapy_ext.crawl.scheduler import loads

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 3.0
_AT_ONCE = 1_000


class Frontier:
    """The queue and the workers' state."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        """Keep the connection.

        Args:
            url: Address of the server, for the workers.
            client: A client of it, for this process.
        """
        self.url = url
        self.client = client
        self._run = uuid.uuid4().hex[:12]
        self.queue = ""
        self.busy = f"bloomlock:crawl:{self._run}:busy"

    @classmethod
    def connect(cls, url: str | None) -> Self:
        """Connect to the server.

        Args:
            url: Its URL; None: `BLOOMLOCK_URL`, `REDIS_URL`, or the embedded server.

        Raises:
            ConfigurationError: The URL is none of a Redis server.
            ServerError: It does not answer within three seconds, or not like a Redis server.
        """
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
        """Use the connection for the length of a `with` block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        self.client.close()

    def open_queue(self, name: str, workers: int) -> None:
        """Take the queue of a filter; until it says otherwise a worker has pages in hand.

        Args:
            name: The filter's name. What an earlier job left in its queue is crawled first.
            workers: How many workers there are.
        """
        self.queue = f"bloomlock:crawl:{name}:queue"
        self.client.hset(self.busy, mapping=dict.fromkeys(map(str, range(workers)), 1))

    def leave_out(self, worker: int) -> None:
        """Do not wait for a worker that is no more."""
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
        """Make a set of the fingerprints, as scrapy-redis does, ask for its size, delete it.

        Returns:
            Its memory in bytes; None where there is nothing to store or the server does not tell.
        """
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
