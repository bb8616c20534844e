"""Spiders that read their start URLs from Redis, as those of scrapy-redis, and lose none.

A message is taken under a lease, and removed when the requests that were made of it are queued.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, Self

from scrapy import Request, Spider
from scrapy.exceptions import DontCloseSpider
from scrapy.spiders import CrawlSpider
from scrapy.utils.defer import deferred_from_coro
from scrapy_redis import spiders as scrapy_redis_spiders

from scrapy_ext.engine import run_in_thread
from scrapy_ext.middleware import BatchingMiddleware
from scrapy_ext.scheduler import Scheduler
from scrapy_ext.settings import CrawlSettings, redis_client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy.crawler import Crawler

logger = logging.getLogger("bloomlock.scrapy")

Kind = Literal["list", "set", "zset"]
_TAKE = (files("scrapy_ext") / "scripts" / "feed_take.lua").read_text("utf-8")


def take_messages(
    client: Any, key: str, how: tuple[Kind, float], count: int, done: Sequence[bytes] = ()
) -> list[tuple[bytes, bytes]]:
    """Remove the messages with the ids `done`; take others, and return their ids and messages.

    `how` is the kind of the key, and the lease in seconds.
    """
    kind, lease = how
    # The tag puts both keys into one slot.
    tagged = key if "{" in key else f"{{{key}}}"
    # If the reply is lost, the messages come again after the lease.
    words = [kind, int(lease * 1000), count, f"{secrets.token_hex(8)}:", *done]
    taken = client.eval(_TAKE, 2, key, f"{tagged}:taken", *words)
    return list(zip(taken[::2], taken[1::2], strict=True))


class RedisMixin(scrapy_redis_spiders.RedisMixin):  # type: ignore[misc]
    """Reads start URLs from the server of the crawl, with the settings of scrapy-redis.

    Scrapy calls `start_requests` of that one no more. With `scrapy_ext.Scheduler` no message is
    lost with a process, and one that no request can be made of is kept among the failed requests;
    with any other scheduler the requests are lost that wait in the process.
    """

    _take: Callable[..., list[tuple[bytes, bytes]]]
    _queue: Scheduler | None = None
    _is_reading = False
    _empty_since: float | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Make the spider and connect it."""
        made: Self = super().from_crawler(crawler, *args, **kwargs)
        made.setup_redis(crawler)
        return made

    async def start(self) -> AsyncIterator[Any]:
        """Read the first messages; yields nothing, as their requests go to the engine."""
        settings = self.crawler.settings
        is_zset = settings.getbool("REDIS_START_URLS_AS_ZSET")
        is_set = settings.getbool("REDIS_START_URLS_AS_SET")
        kind: Kind = "set" if is_set else "zset" if is_zset else "list"
        config = CrawlSettings.read(self.crawler)
        client = redis_client(settings, config.timeout)
        self._take = partial(take_messages, client, self.redis_key, (kind, config.lease))
        middleware = self.crawler.get_spider_middleware(BatchingMiddleware)
        if middleware is not None and isinstance(middleware.checker, Scheduler):
            self._queue = middleware.checker
            self._queue.exchange.stays = True
        await self._read()
        return
        yield

    def spider_idle(self) -> None:
        """Read more messages, and keep the spider open for MAX_IDLE_TIME_BEFORE_CLOSE seconds."""
        if not self._is_reading:
            since = self._empty_since or time.monotonic()
            if self.max_idle_time and time.monotonic() - since >= self.max_idle_time:
                return
            self._is_reading = True
            deferred_from_coro(self._read())
        raise DontCloseSpider

    async def _read(self) -> None:
        try:
            taken = await run_in_thread(self._take, self.redis_batch_size)
            for identity, message in taken:
                self._crawl(identity, message)
            if taken:
                self._empty_since = None
            elif self._empty_since is None:
                self._empty_since = time.monotonic()
        # Messages that were taken and not done come again after the lease.
        except Exception:
            logger.exception("The start URLs at %r cannot be read.", self.redis_key)
        finally:
            self._is_reading = False

    def _crawl(self, identity: bytes, message: bytes) -> None:
        try:
            made = self.make_request_from_data(message)
            requests = [*made] if isinstance(made, Iterable) else [made]
        # The message would fail again, so it is not left in the feed.
        except Exception as error:
            logger.exception("No request can be made of a message at %r.", self.redis_key)
            if self._queue is not None:
                self._queue.exchange.send(self._queue.pages.unreadable(message, error))
            requests = []
        for request in requests:
            if isinstance(request, Request):
                self.crawler.engine.crawl(request)
        if self._queue is not None:
            self._queue.exchange.send(partial(self._remove, identity))
        else:
            self._remove(identity)

    def _remove(self, identity: bytes) -> None:
        removing = run_in_thread(self._take, 0, [identity])
        again = "A message at %r comes again: %s"
        deferred_from_coro(removing).addErrback(
            lambda failure: logger.warning(again, self.redis_key, failure.value)
        )


class RedisSpider(RedisMixin, Spider):
    """A spider that reads its start URLs from Redis."""


class RedisCrawlSpider(RedisMixin, CrawlSpider):
    """A CrawlSpider that reads its start URLs from Redis."""
