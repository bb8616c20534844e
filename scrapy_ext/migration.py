"""The queue of scrapy-redis, moved into that of the crawl and back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from bloomlock.errors import ConfigurationError
from scrapy_ext.queue import text_of
from scrapy_ext.requests import from_pickle, to_pickle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

    from scrapy_ext.crawl_state import CrawlRecord

logger = logging.getLogger("bloomlock.scrapy")

REQUESTS_PER_STEP = 1000
_QUEUES = {f"scrapy_redis.queue.{name}" for name in ("PriorityQueue", "FifoQueue", "LifoQueue")}


def queue_of_scrapy_redis(
    settings: BaseSettings, client: Any, spider_name: str
) -> Iterator[list[bytes]]:
    """Yield the entries of a queue of scrapy-redis, and remove them when the next are asked for.

    A process that dies in between has moved some and not removed them; these are fetched twice.

    Raises:
        ConfigurationError: They are not as scrapy-redis writes them by itself.
    """
    key = settings.get("SCHEDULER_QUEUE_KEY", "%(spider)s:requests") % {"spider": spider_name}
    kind = text_of(client.type(key))
    if kind not in {"zset", "list"}:
        return
    queue_class = settings.get("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.PriorityQueue")
    if isinstance(queue_class, type):
        queue_class = f"{queue_class.__module__}.{queue_class.__qualname__}"
    if queue_class not in _QUEUES or settings.get("SCHEDULER_SERIALIZER"):
        raise ConfigurationError(
            f"the queue {key!r} is of SCHEDULER_QUEUE_CLASS = {queue_class!r} and "
            f"SCHEDULER_SERIALIZER = {settings.get('SCHEDULER_SERIALIZER')!r}, and only those of "
            "scrapy-redis can be moved; crawl until it is empty, then delete both "
            'settings (BLOOMLOCK_ORDER is "lifo" or "fifo")'
        )
    count = 0
    while True:
        entries: list[bytes]
        if kind == "zset":
            entries = client.zrange(key, 0, REQUESTS_PER_STEP - 1)
        else:
            # What waits longest stands last.
            entries = client.lrange(key, -REQUESTS_PER_STEP, -1)[::-1]
        if not entries:
            break
        yield [from_pickle(entry) for entry in entries]
        if kind == "zset":
            client.zrem(key, *entries)
        else:
            client.ltrim(key, 0, -len(entries) - 1)
        count += len(entries)
    logger.info("%d requests were moved from the queue %r of scrapy-redis.", count, key)


def put_back(record: CrawlRecord, client: Any, key: str) -> int:
    """Move what waits in a crawl into the queue of scrapy-redis; return how many requests.

    Raises:
        ConfigurationError: Processes are at work on the crawl.
    """
    count = 0
    for requests in record.take_all():
        client.zadd(key, {to_pickle(entry): -priority for priority, entry in requests})
        count += len(requests)
    return count
