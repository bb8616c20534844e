"""A worker process of a job.

It is `python -m scrapy_ext.crawl.worker CONFIG JOURNAL NUMBER`, a Scrapy process like any other. It
runs until its standard input ends: the job closes it to stop the worker, and it closes when the
job is killed. Then the worker finishes the pages it has in flight.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.crawler import CrawlerProcess
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro
from scrapy_redis.queue import FifoQueue

from bloomlock.errors import BloomlockError
from scrapy_ext.crawl import frontier
from scrapy_ext.crawl.site import TOKEN_HEADER
from scrapy_ext.crawl.spider import CrawlConfig, SiteSpider
from scrapy_ext.crawl.stats import Journal
from scrapy_ext.crawl.workers import hold

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from twisted.python.failure import Failure

_STOPPED = "stopped"


def scrapy_settings(config: CrawlConfig, log: Path) -> dict[str, Any]:
    """Return the settings of a worker: our scheduler, in the order in which pages were found."""
    headers = {TOKEN_HEADER: config.token} if config.token else {}
    return {
        "BLOOMLOCK_URL": config.redis,
        "BLOOMLOCK_NAME": config.filter_name.replace("%", "%%"),
        "BLOOMLOCK_CAPACITY": config.capacity,
        "BLOOMLOCK_ERROR_RATE": config.error_rate,
        # The reactor does not wait for it.
        "BLOOMLOCK_TIMEOUT": 5.0,
        "SCHEDULER": frontier.CrawlScheduler,
        "SCHEDULER_QUEUE_CLASS": FifoQueue,
        "SCHEDULER_QUEUE_KEY": config.queue.replace("%", "%%"),
        # Unlike pickle it cannot be executed.
        "SCHEDULER_SERIALIZER": frontier.__name__,
        "USER_AGENT": f"bloomlock/{version('bloomlock')}",
        "DEFAULT_REQUEST_HEADERS": {"Accept": "text/html,*/*;q=0.5", **headers},
        "ROBOTSTXT_OBEY": config.robots,
        "CONCURRENT_REQUESTS": config.concurrency,
        "CONCURRENT_REQUESTS_PER_DOMAIN": config.concurrency,
        "DOWNLOAD_DELAY": config.delay,
        "AUTOTHROTTLE_ENABLED": config.throttle,
        "AUTOTHROTTLE_START_DELAY": 0.5,
        "AUTOTHROTTLE_MAX_DELAY": 10.0,
        "DOWNLOAD_TIMEOUT": config.timeout,
        "DOWNLOAD_MAXSIZE": 32 << 20,
        "RETRY_TIMES": 2,
        # Each of these would take a URL out of sight of the journal.
        "REDIRECT_ENABLED": False,
        "METAREFRESH_ENABLED": False,
        "HTTPERROR_ALLOW_ALL": True,
        "URLLENGTH_LIMIT": 0,
        "COOKIES_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "INFO",
        "LOG_FILE": str(log),
    }


def main(arguments: list[str]) -> int:
    """Run one worker to its end; return its exit status."""
    journal_path = Path(arguments[1])
    config = CrawlConfig.load(Path(arguments[0]))
    hold(config.workers[int(arguments[2])])
    process = CrawlerProcess(scrapy_settings(config, journal_path.with_suffix(".log")))
    crawler = process.create_crawler(SiteSpider)
    journal = Journal(journal_path)
    errors: list[BaseException] = []
    crawling = process.crawl(
        crawler,
        config=config,
        journal=journal,
        worker=int(arguments[2]),
        is_stopped=_is_stopped,
    )

    def note(failure: Failure) -> None:
        if failure.value is not None:
            errors.append(_root(failure.value))

    crawling.addErrback(note)
    end = threading.Thread(target=_await_end, args=(crawler, config.last_pages), daemon=True)
    end.start()
    process.start()
    journal.count()
    reason = crawler.stats.get_value("finish_reason")
    if process.bootstrap_failed or reason != _STOPPED:
        causes = [f"{type(error).__name__}: {error}" for error in errors]
        why = next(iter(causes), None) or reason or "it did not start"
        sys.stderr.write(f"the spider ended by itself: {why}\n")
        return 1
    return 0


def _root(error: BaseException) -> BaseException:
    """Return what an error began with, or the last one of ours on the way from there.

    Scrapy fails again when it closes an engine that has not started.
    """
    while not isinstance(error, BloomlockError):
        earlier = error.__cause__ or error.__context__
        if earlier is None:
            break
        error = earlier
    return error


def _is_stopped() -> bool:
    """Return whether standard input has ended; nothing is ever written to it."""
    return bool(select.select([0], [], [], 0)[0])


def _await_end(crawler: Crawler, last_pages: float) -> None:
    """Wait in a thread for the end of standard input, then stop the spider, at last by force."""
    from twisted.internet import reactor  # noqa: PLC0415 - Scrapy has to install it first

    # Not through sys.stdin, whose lock this thread would hold when the interpreter ends: it aborts.
    while os.read(0, 1):
        pass
    reactor.callFromThread(_stop, crawler)
    threading.Event().wait(last_pages)
    os._exit(3)


def _stop(crawler: Crawler) -> None:
    """Close the spider; where it is not open yet, as soon as it is."""
    try:
        opened = crawler.engine.spider is not None
    except RuntimeError:
        opened = False
    if opened:
        deferred_from_coro(crawler.engine.close_spider_async(reason=_STOPPED))
    else:
        call_later(0.1, _stop, crawler)


if __name__ == "__main__":
    # What is imported stays, so a search for garbage among it is a fifth of a short crawl.
    gc.freeze()
    sys.exit(main(sys.argv[1:]))
