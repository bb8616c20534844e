"""Scrapy's engine, where it has no public names, and calls beside its reactor.

Scrapy tells nobody when a request is done (scrapy/scrapy#7978); `ExecutionEngine._slot` knows it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import scrapy
from scrapy.utils.asyncio import call_later, is_asyncio_available
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from bloomlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request
    from scrapy.crawler import Crawler

    from bloomlock import BloomFilter

logger = logging.getLogger("bloomlock.scrapy")

P = ParamSpec("P")
T = TypeVar("T")


def check(crawler: Crawler) -> None:
    """Raise ConfigurationError if this version of Scrapy has an engine of another form."""
    for name in ("inprogress", "nextcall", "closing"):
        if not hasattr(_slot(crawler), name):
            raise ConfigurationError(
                f"scrapy_ext.Scheduler cannot be used with Scrapy {scrapy.__version__}: its "
                f"engine has no _slot.{name}, which tells when a request is done"
            )


def refuse(crawler: Crawler, error: Exception) -> None:
    """Log why a crawl cannot start, so that this sentence is all; the caller raises the error."""
    logger.critical("%s", error)
    # With a spider Scrapy closes components that it has not opened, and logs their errors; Scrapy
    # 2.14 also ends with exit status 0.
    crawler.spider = None
    if crawler.engine is not None:
        crawler.engine.spider = None
    # Nobody reads the error of the task, so asyncio would log it with a traceback.
    with suppress(RuntimeError):
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def in_progress(crawler: Crawler) -> Collection[Request]:
    """Return the requests whose download, callback or items are not done."""
    slot = _slot(crawler)
    return slot.inprogress if slot is not None else ()


def wake(crawler: Crawler) -> None:
    """Let the engine ask its scheduler for requests."""
    slot = _slot(crawler)
    if slot is not None and slot.closing is None:
        slot.nextcall.schedule()


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider, unless it is closing."""
    slot = _slot(crawler)
    if crawler.engine is not None and slot is not None and slot.closing is None:
        deferred_from_coro(crawler.engine.close_spider_async(reason=reason))


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a blocking call in a thread; a caller that is cancelled does not end it."""
    if is_asyncio_available():
        return await asyncio.to_thread(call, *args, **kwargs)
    return await maybe_deferred_to_future(deferToThread(call, *args, **kwargs))


class Bell:
    """Lets one task wait until another rings; the other runs on first."""

    _waiting: Deferred[None] | None = None

    async def wait(self) -> None:
        self._waiting = Deferred()
        await maybe_deferred_to_future(self._waiting)

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            call_later(0, waiting.callback, None)


def _slot(crawler: Crawler) -> Any:
    return getattr(crawler.engine, "_slot", None)


def note_fill(crawler: Crawler, shared: BloomFilter) -> None:
    """Put the state of the filter into the stats, if it can be asked."""
    # The filter may be gone, and an error would hide how the crawl ended.
    with suppress(Exception):
        stats, info = crawler.stats, shared.info()
        for name in ("estimated_count", "fill_ratio", "current_error_rate", "memory_bytes"):
            stats.set_value(f"bloomlock/{name}", getattr(info, name))
        most = info.up_to or info.capacity
        stats.set_value("bloomlock/capacity_used", info.estimated_count / most)
