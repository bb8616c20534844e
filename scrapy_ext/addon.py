"""The add-on: everything a project needs to set."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.core.scheduler import Scheduler as LocalScheduler
from scrapy.utils.misc import load_object

from scrapy_ext.dupefilter import BloomDupeFilter
from scrapy_ext.middleware import BatchingMiddleware, DownloadMiddleware
from scrapy_ext.scheduler import Scheduler

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger("bloomlock.scrapy")

PLACE = 10
"""Nearer to the engine than any middleware of Scrapy."""
SCRAPY_REDIS = "scrapy_redis.scheduler.Scheduler"


class BloomlockAddon:
    """Sets the scheduler that processes share, and the two middlewares it needs.

    Set `ADDONS = {"scrapy_ext.BloomlockAddon": 500}`. The scheduler takes the place of Scrapy's and
    of that of scrapy-redis, whose queue it goes on with. A scheduler of the project's own stays;
    then only the duplicates filter is set, with a warning of what that loses. What the project sets
    wins, as a place of its own for a middleware.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Change what neither the project nor the spider sets."""
        chosen = load_object(settings["SCHEDULER"])
        name = f"{chosen.__module__}.{chosen.__qualname__}"
        for setting, middleware in (
            ("SPIDER_MIDDLEWARES", BatchingMiddleware),
            ("DOWNLOADER_MIDDLEWARES", DownloadMiddleware),
        ):
            settings.setdefault_in_component_priority_dict(setting, middleware, PLACE)
        if chosen is LocalScheduler or name == SCRAPY_REDIS:
            settings.set("SCHEDULER", Scheduler, settings.getpriority("SCHEDULER") or 0)
            if name == SCRAPY_REDIS:
                logger.info(
                    "scrapy_ext.Scheduler takes the place of %s and goes on with its queue. "
                    "`bloomlock scrapy-import` makes a filter of its set of fingerprints.",
                    name,
                )
        elif Scheduler not in chosen.__mro__:
            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
            logger.warning(
                "The project sets SCHEDULER to %s, which wins over the add-on: requests that wait "
                "or are in flight in a process that crashes are lost, and count as seen.",
                name,
            )
