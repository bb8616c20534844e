"""The stats of a crawl about its filter: what asking it costs, and how full it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro

from scrapy_ext.engine import run_in_thread

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.utils.asyncio import CallLaterResult

    from bloomlock import BloomFilter, FilterInfo

logger = logging.getLogger("bloomlock.scrapy")

FIRST_LOOK_S, LONGEST_PAUSE_S = 10.0, 60.0
"""Each pause is twice as long as the one before: the server reads the whole filter for a look."""


class FilterStats:
    """Counts, and warns once when the rate of the filter is above the asked one."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._has_warned = False
        self._timer: CallLaterResult | None = None
        self._pause_s = FIRST_LOOK_S

    def count(self, name: str, by: float = 1) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(name, by)  # type: ignore[arg-type]

    def watch(self, shared: BloomFilter) -> None:
        """Look at the filter now and then, until `stop`."""

        async def look() -> None:
            await self.look(shared)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            if self._timer is not None:
                self.watch(shared)

        self._timer = call_later(self._pause_s, lambda: deferred_from_coro(look()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def look(self, shared: BloomFilter) -> None:
        try:
            self.note(await run_in_thread(shared.info))
        # What becomes of the checks while the server is away is said by them.
        except Exception as error:  # noqa: BLE001
            logger.debug("Looking at the filter %r failed: %s", shared.name, error)

    def note(self, info: FilterInfo) -> None:
        most = info.up_to or info.capacity
        if (stats := self._crawler.stats) is not None:
            for name in ("estimated_count", "fill_ratio", "current_error_rate", "memory_bytes"):
                stats.set_value(f"bloomlock/{name}", getattr(info, name))
            stats.set_value("bloomlock/capacity_used", info.estimated_count / most)
        if info.current_error_rate > info.error_rate and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "The filter %r takes a new request for a seen one at a rate of %.2g, more than the "
                "%.2g that was asked for: it holds about %s requests and is made for %s. What it "
                "takes for seen is not fetched; a filter of another BLOOMLOCK_NAME may have a "
                "larger BLOOMLOCK_CAPACITY.",
                info.name,
                info.current_error_rate,
                info.error_rate,
                f"{info.estimated_count:,}",
                f"{most:,}",
            )
