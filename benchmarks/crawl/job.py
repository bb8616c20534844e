"""What a Scrapy process of the benchmarks does: it crawls, and answers what it measured.

The journal gets the path of a page when its item has gone through the pipelines; what is written
there outlives the process.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Spider
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import CloseSpider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from scrapy.http import Response

SOCKET_CALLS = ("connect", "recv", "recv_into", "send", "sendall")


@dataclass(frozen=True, slots=True)
class CrawlJob:
    """What a process does.

    Attributes:
        start: Address of the first page.
        settings: Of Scrapy.
        log: File of what the process prints.
        pages: How many to crawl; 0: all there are.
        journal: File of the pages whose items were processed; empty: none.
    """

    start: str
    settings: dict[str, Any]
    log: str
    pages: int = 0
    journal: str = ""


@dataclass(slots=True)
class Measured:
    """What a crawl came to, from the first callback to the last that was asked for.

    Attributes:
        pages: Callbacks after the first.
        seconds: They took.
        blocked: Seconds for which the reactor stood in a blocking call meanwhile.
        cpu: Seconds of the process's processor time meanwhile.
        followed: Callbacks of the whole crawl that followed the links of their page.
    """

    pages: int = 0
    seconds: float = 0.0
    blocked: float = 0.0
    cpu: float = 0.0
    followed: int = 0


class BlockedTime:
    """Seconds for which the thread that makes it stands in a blocking call.

    Those are the calls of sockets that are not asynchronous, and the waits for another thread
    by a Condition, as those for an Event, a Future and a Queue are.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread = threading.get_ident()
        for name in SOCKET_CALLS:
            call = getattr(socket.socket, name)
            setattr(socket.socket, name, self._timed(call, lambda one: one.gettimeout() != 0))
        wait: Any = self._timed(threading.Condition.wait, lambda _one: True)
        threading.Condition.wait = wait  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any], blocks: Callable[[Any], bool]) -> Callable[..., Any]:
        def timed(one: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread or not blocks(one):
                return call(one, *args, **kwargs)
            start = time.perf_counter()
            try:
                return call(one, *args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class LinkSpider(Spider):
    """Follows every link, and stops after some pages."""

    name = "bench"

    def __init__(self, job: CrawlJob, blocked: BlockedTime, **kwargs: Any) -> None:
        super().__init__(start_urls=[job.start], **kwargs)
        self.journal = job.journal
        self.measured = Measured()
        self._last = job.pages
        self._blocked = blocked
        self._met = 0
        self._first = (0.0, 0.0, 0.0)

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Any]:
        """Yield the page as an item, then its links."""
        del kwargs
        self._count()
        yield {"path": urlsplit(response.url).path}
        for target in response.xpath("//a/@href").getall():
            yield response.follow(target)

    def _count(self) -> None:
        now = (time.perf_counter(), self._blocked.seconds, time.process_time())
        measured = self.measured
        self._met += 1
        if self._met == 1:
            self._first = now
        elif not self._last or self._met <= self._last:
            measured.pages += 1
            measured.seconds, measured.blocked, measured.cpu = (
                last - first for first, last in zip(self._first, now, strict=True)
            )
        if self._last and self._met >= self._last:
            raise CloseSpider("enough pages")
        measured.followed += 1


class Journal:
    """The item pipeline that writes the journal: a line in one write."""

    def process_item(self, item: dict[str, str], spider: LinkSpider) -> dict[str, str]:
        """Write the page of an item."""
        if spider.journal:
            file = os.open(spider.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, item["path"].encode() + b"\n")
            os.close(file)
        return item


def work(pipe: Connection, job: CrawlJob) -> None:
    """Crawl, and send what was measured; the target of a process."""
    file = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    settings = {
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "CONCURRENT_REQUESTS": 8,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "DOWNLOAD_DELAY": 0,
        "ITEM_PIPELINES": {Journal: 0},
        **job.settings,
    }
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(LinkSpider)
    process.crawl(crawler, job=job, blocked=BlockedTime())
    process.start()
    spider = crawler.spider
    if process.bootstrap_failed or not isinstance(spider, LinkSpider):
        raise SystemExit(1)
    pipe.send(spider.measured)
