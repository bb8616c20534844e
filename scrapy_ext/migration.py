"""Taking over crawls without bloomlock: their fingerprints, and the queue of scrapy-redis.

Stored fingerprints are of use only to a crawl whose `REQUEST_FINGERPRINTER_CLASS` takes the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from w3lib.url import canonicalize_url

from bloomlock.errors import ConfigurationError
from scrapy_ext.crawl_state import REQUESTS_PER_TRIP
from scrapy_ext.requests import PICKLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Request
    from scrapy.settings import BaseSettings

logger = logging.getLogger("bloomlock.scrapy")

_QUEUES = {f"scrapy_redis.queue.{name}" for name in ("PriorityQueue", "FifoQueue", "LifoQueue")}


class ScrapyRedisFingerprinter:
    """Takes the fingerprints of the duplicates filter of scrapy-redis 0.8 and later.

    Set `REQUEST_FINGERPRINTER_CLASS = "scrapy_ext.ScrapyRedisFingerprinter"` where
    the filter was made of a set of scrapy-redis.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Request, bytes] = WeakKeyDictionary()

    def fingerprint(self, request: Request) -> bytes:
        """Return the 20 bytes of the method, the URL and the body of a request."""
        if request not in self._known:
            self._known[request] = hashlib.sha1(self._text(request)).digest()  # noqa: S324
        return self._known[request]

    def _text(self, request: Request) -> bytes:
        parts = {
            "body": request.body.hex(),
            "method": request.method,
            "url": canonicalize_url(request.url),
        }
        return json.dumps(parts).encode()


class EarlierFingerprinter(ScrapyRedisFingerprinter):
    """Takes the fingerprints of Scrapy before 2.7, and of scrapy-redis before 0.8.

    Scrapy 2.7 to 2.13 have taken them too, where `REQUEST_FINGERPRINTER_IMPLEMENTATION` is "2.6".
    """

    def _text(self, request: Request) -> bytes:
        return request.method.encode() + canonicalize_url(request.url).encode() + request.body


class OtherQueue:
    """The queue that scrapy-redis has for a spider."""

    def __init__(self, settings: BaseSettings, client: Any, spider_name: str) -> None:
        self._settings = settings
        self._client = client
        key = settings.get("SCHEDULER_QUEUE_KEY", "%(spider)s:requests")
        self._key: str = key % {"spider": spider_name}

    def take_all(self) -> Iterator[list[bytes]]:
        """Yield its entries, and remove each list after its use.

        The queue is renamed first. If this process dies here, the next one moves the rest, and
        fetches some of it twice.
        """
        client, key, get = self._client, self._key, self._settings.get
        # The tag puts both keys into one slot.
        old = f"{key}:old" if "{" in key else f"{{{key}}}:old"
        count = 0
        for part in (old, key):
            kind = client.type(part).decode()
            if kind not in {"zset", "list"}:
                continue
            queue_class = get("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.PriorityQueue")
            if isinstance(queue_class, type):
                queue_class = f"{queue_class.__module__}.{queue_class.__qualname__}"
            # Others may write entries of another form.
            if queue_class not in _QUEUES or get("SCHEDULER_SERIALIZER"):
                raise ConfigurationError(
                    f"the queue {key!r} is of SCHEDULER_QUEUE_CLASS = {queue_class!r} and "
                    f"SCHEDULER_SERIALIZER = {get('SCHEDULER_SERIALIZER')!r}, and only those of "
                    "scrapy-redis can be moved; crawl until it is empty, then delete both "
                    "settings (the order is that of SCHEDULER_MEMORY_QUEUE)"
                )
            if part == key:
                client.rename(key, old)
            while kind == "zset" and (entries := client.zrange(old, 0, REQUESTS_PER_TRIP - 1)):
                yield [PICKLE + entry for entry in entries]
                client.zrem(old, *entries)
                count += len(entries)
            while kind == "list" and (entries := client.lrange(old, -REQUESTS_PER_TRIP, -1)):
                # The oldest stands last.
                yield [PICKLE + entry for entry in reversed(entries)]
                client.ltrim(old, 0, -len(entries) - 1)
                count += len(entries)
        if count:
            logger.info("%d requests were moved from the queue %r of scrapy-redis.", count, key)

    def users(self) -> str:
        """Return a sentence if scrapy-redis has queued something since its queue was moved."""
        if not self._client.exists(self._key):
            return ""
        return (
            f"Processes of scrapy-redis push requests to the queue {self._key!r}, which is not "
            "read here; stop them and all processes of the spider, then start it again, which "
            "moves that queue."
        )
