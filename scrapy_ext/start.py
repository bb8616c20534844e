"""What a process reads from Scrapy before it comes to a crawl, and what it says then."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

from bloomlock.errors import ConfigurationError
from scrapy_ext.settings import filled

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
    own = vars(spider).items()
    return {key: value for key, value in own if isinstance(value, str) and key != "name"}


def pace_of(crawler: Crawler, settings: CrawlSettings) -> dict[str, Any]:
    """Return how many requests of a host a process has at once, and the ms between two of a host.

    As "limit" and "delay_ms"; "slots" has the two of hosts that are named in DOWNLOAD_SLOTS.
    """
    delay = crawler.settings.getfloat("DOWNLOAD_DELAY")
    delay = float(getattr(crawler.spider, "download_delay", None) or delay)
    most = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")

    def slot(most: int, delay: float) -> tuple[int, int]:
        delay_ms = int(delay * 1000) if settings.pace == "shared" else 0
        return min(most, MOST_WITH_DELAY) if delay else most, delay_ms

    limit, delay_ms = slot(most, delay)
    slots = {
        host: slot(one.get("concurrency", most), one.get("delay", delay))
        for host, one in crawler.settings.getdict("DOWNLOAD_SLOTS").items()
    }
    return {"limit": limit, "delay_ms": delay_ms, "slots": slots}


def overwritten_file(crawler: Crawler) -> str:
    """Return an existing file that a feed of this crawl would overwrite; empty if there is none."""
    for uri, options in crawler.settings.getdict("FEEDS").items():
        path = str(uri)
        # With its time a file is a new one.
        if not options.get("overwrite") or "%(time)" in path or "%(batch" in path:
            continue
        if "%(" in path:
            path = filled(path, crawler.spider)
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


def log_begin(crawler: Crawler, name: str, begun: Begun, delay_ms: int) -> None:
    """Say how this process came to its crawl, and what is not as in Scrapy alone."""
    if begun.what == "begun":
        logger.info("The crawl %r begins.", name)
    elif begun.what == "joined":
        logger.info("Joins %d processes in the crawl %r.", begun.workers, name)
    else:
        logger.warning(
            "Goes on with the crawl %r of %s (%d done, %d wait, %d failed), which was stopped; "
            "begin anew: -s BLOOMLOCK_RESUME=0",
            name,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(begun.begun_ms / 1000)),
            begun.done,
            begun.waiting,
            begun.failed,
        )
    settings = crawler.settings
    if settings.getdict("FEEDS"):
        logger.warning(
            "A page is done when its items have left the pipelines; FEEDS write them later, so a "
            "process that is killed loses what its feeds have not written. A pipeline that "
            "commits, or FEED_EXPORT_BATCH_ITEM_COUNT, loses less."
        )
    if delay_ms:
        logger.info(
            "%g s lie between two requests to a host, for all processes together "
            '(BLOOMLOCK_PACE = "process": for each).',
            delay_ms / 1000,
        )
    if settings.getbool("SCHEDULER_PERSIST"):
        logger.info(
            "SCHEDULER_PERSIST is not needed any more: a crawl that is stopped goes on. For "
            "incremental crawls there is BLOOMLOCK_PERSIST."
        )
    for setting, meaning in (
        ("SCHEDULER_IDLE_BEFORE_CLOSE", "a process ends so many seconds after its last request"),
        ("SCHEDULER_FLUSH_ON_START", "it is BLOOMLOCK_RESUME = False"),
    ):
        if settings.get(setting):
            logger.info("%s of scrapy-redis is read: %s.", setting, meaning)
