"""The add-on: the one setting that makes a project use bloomlock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.utils.misc import load_object

from scrapy_ext.dupefilter import BloomDupeFilter
from scrapy_ext.middleware import BatchingMiddleware

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger("bloomlock.scrapy")

MIDDLEWARE_PRIORITY = 10
"""Nearer to the engine than any spider middleware of Scrapy."""

SCRAPY_REDIS, OURS = "scrapy_redis.scheduler.Scheduler", "scrapy_ext.Scheduler"


class BloomlockAddon:
    """Sets the duplicates filter and the middleware that checks the requests of a page together.

    Set `ADDONS = {"scrapy_ext.BloomlockAddon": 500}`. What the project or the spider sets wins: a
    `DUPEFILTER_CLASS` of its own, with a warning, and a place of its own for a middleware in
    `SPIDER_MIDDLEWARES`, None to go without. Where the scheduler is that of scrapy-redis,
    `scrapy_ext.Scheduler` takes its place, which goes on with its queue and needs nothing else.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Change what neither the project nor the spider sets.

        Args:
            settings: Those of the crawler.
        """
        if self._replace_scheduler(settings):
            return
        name = "DUPEFILTER_CLASS"
        # Of what has a higher priority nothing is changed.
        settings.set(name, BloomDupeFilter, "addon")
        chosen = load_object(settings[name])
        if not issubclass(chosen, BloomDupeFilter):
            logger.warning(
                "The project or the spider sets %s to %s.%s, which wins over the add-on: requests "
                "are not checked by bloomlock. Delete that setting.",
                name,
                chosen.__module__,
                chosen.__qualname__,
            )
            return
        settings.setdefault_in_component_priority_dict(
            "SPIDER_MIDDLEWARES", BatchingMiddleware, MIDDLEWARE_PRIORITY
        )

    def _replace_scheduler(self, settings: BaseSettings) -> bool:
        """Put our scheduler in the place of that of scrapy-redis; return whether ours is set."""
        name = "SCHEDULER"
        chosen = load_object(settings[name])
        path = f"{chosen.__module__}.{chosen.__qualname__}"
        if path == SCRAPY_REDIS:
            settings.set(name, OURS, settings.getpriority(name) or 0)
            logger.info(
                "%s goes on with the queue of %s. Its set of fingerprints is not read; `bloomlock "
                "scrapy-import` makes a filter of it.",
                OURS,
                SCRAPY_REDIS,
            )
        return path in {SCRAPY_REDIS, "scrapy_ext.scheduler.Scheduler"}
