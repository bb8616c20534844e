"""What a process reads from Scrapy before it comes to a crawl, and what it says then."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

from bloomlock.errors import ConfigurationError
from scrapy_ext.crawl_state import Pace

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_ext.crawl_state import Begun
    from scrapy_ext.settings import CrawlSettings

logger = logging.getLogger("bloomlock.scrapy")

MOST_WITH_DELAY = 2
"""Requests of a host with a delay that a process has: one on its way, one that waits."""


def attributes_of(spider: Spider) -> dict[str, str]:
    """Return what the spider was called with, as far as can be known: its own texts."""
    return {
        key: value
        for key, value in vars(spider).items()
        if isinstance(value, str) and key != "name"
    }


def pace_of(crawler: Crawler, settings: CrawlSettings) -> Pace:
    delay = crawler.settings.getfloat("DOWNLOAD_DELAY")
    delay = float(getattr(crawler.spider, "download_delay", None) or delay)
    most = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    slots = {
        host: _slot(slot.get("concurrency", most), slot.get("delay", delay), settings)
        for host, slot in crawler.settings.getdict("DOWNLOAD_SLOTS").items()
    }
    return Pace(*_slot(most, delay, settings), slots)


def _slot(most: int, delay: float, settings: CrawlSettings) -> tuple[int, float]:
    if delay:
        most = min(most, MOST_WITH_DELAY)
    return most, delay if settings.pace == "shared" else 0.0


def overwritten_file(crawler: Crawler) -> str:
    """Return an existing file that a feed of this crawl would overwrite; empty if there is none."""
    for uri, options in crawler.settings.getdict("FEEDS").items():
        text = str(uri)
        # With its time a file is a new one.
        if not options.get("overwrite") or "%(time)" in text or "%(batch" in text:
            continue
        parameters = {key: getattr(crawler.spider, key) for key in dir(crawler.spider)}
        path = text % parameters if "%(" in text else text
        if path.startswith("file://"):
            path = url2pathname(path.removeprefix("file://"))
        if "://" not in path and Path(path).is_file() and Path(path).stat().st_size:
            return path
    return ""


def check_jobdir(crawler: Crawler) -> None:
    """Raise ConfigurationError if JOBDIR has a queue or a filter of Scrapy."""
    jobdir = crawler.settings.get("JOBDIR")
    if not jobdir:
        return
    for name in ("requests.queue", "requests.seen"):
        found = Path(jobdir, name)
        if any(found.iterdir()) if found.is_dir() else found.is_file() and found.stat().st_size:
            raise ConfigurationError(
                f"JOBDIR has {found} of a crawl without bloomlock, which is not read; `bloomlock "
                f"scrapy-import {jobdir} NAME` makes a filter of requests.seen, then delete both"
            )
    logger.info(
        "Queue and filter of the crawl are on the server; in JOBDIR is only spider.state, which is "
        "of one process."
    )


def log_begin(crawler: Crawler, settings: CrawlSettings, begun: Begun) -> None:
    """Say how this process came to its crawl, and what is not as in Scrapy alone."""
    name = settings.name
    if begun.what == "begun":
        logger.info("The crawl %r begins.", name)
    elif begun.what == "joined":
        logger.info("Joins %d processes in the crawl %r.", begun.workers, name)
    else:
        logger.warning(
            "Goes on with the crawl %r of %s (%d done, %d wait, %d failed), which was stopped; "
            "begin anew: -s BLOOMLOCK_RESUME=0",
            name,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(begun.begun_at)),
            begun.done,
            begun.waiting,
            begun.failed,
        )
    scrapy_settings = crawler.settings
    if scrapy_settings.getdict("FEEDS"):
        logger.warning(
            "A page is done when its items have left the pipelines; FEEDS write them later, so a "
            "process that is killed loses what its feeds have not written. A pipeline that "
            "commits, or FEED_EXPORT_BATCH_ITEM_COUNT, loses less."
        )
    pace = pace_of(crawler, settings)
    if pace.delay:
        logger.info(
            "%g s lie between two requests to a host, for all processes together "
            '(BLOOMLOCK_PACE = "process": for each).',
            pace.delay,
        )
    if scrapy_settings.getbool("SCHEDULER_PERSIST"):
        logger.info(
            "SCHEDULER_PERSIST is not needed any more: a crawl that is stopped goes on. For "
            "incremental crawls there is BLOOMLOCK_PERSIST."
        )
    for setting, meaning in (
        ("SCHEDULER_IDLE_BEFORE_CLOSE", "a process ends so many seconds after its last request"),
        ("SCHEDULER_FLUSH_ON_START", "it is BLOOMLOCK_RESUME = False"),
    ):
        if scrapy_settings.get(setting):
            logger.info("%s of scrapy-redis is read: %s.", setting, meaning)
