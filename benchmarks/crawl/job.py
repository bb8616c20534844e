"""What a Scrapy process of the benchmarks does: it crawls, and answers what it measured."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Spider, signals
from scrapy.crawler import CrawlerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from scrapy.http import Response

SOCKET_CALLS = ("connect", "recv", "recv_into", "send", "sendall")
SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    "CONCURRENT_REQUESTS": 8,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
    "DOWNLOAD_DELAY": 0,
}


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
    name = "bench"

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        yield {"path": urlsplit(response.url).path}
        for target in response.xpath("//a/@href").getall():
            yield response.follow(target)


def work(pipe: Connection, start: str, settings: dict[str, Any], folder: str) -> None:
    """Crawl, and send what was measured; the target of a process.

    The journal in the folder gets the path of a page when its item has gone through the pipelines.
    What is written there outlives the process.
    """
    log, journal = (
        os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for name in ("log", "journal")
    )
    for standard in (1, 2):
        os.dup2(log, standard)

    def note(item: dict[str, str]) -> None:
        os.write(journal, item["path"].encode() + b"\n")

    def opened() -> None:
        began.extend((time.perf_counter(), blocked.seconds, time.process_time()))

    def closed() -> None:
        now = (time.perf_counter(), blocked.seconds, time.process_time())
        spent.extend(after - before for before, after in zip(began, now, strict=True))

    began: list[float] = []
    spent: list[float] = []
    blocked = BlockedTime()
    process = CrawlerProcess({**SETTINGS, **settings})
    crawler = process.create_crawler(LinkSpider)
    crawler.signals.connect(note, signals.item_scraped)
    crawler.signals.connect(opened, signals.spider_opened)
    crawler.signals.connect(closed, signals.spider_closed)
    process.crawl(crawler, start_urls=[start])
    process.start()
    pages = crawler.stats.get_value("response_received_count", 0) if crawler.stats else 0
    if process.bootstrap_failed or not pages:
        raise SystemExit(1)
    seconds, stood, cpu = spent
    pipe.send(
        {"rate": pages / seconds, "blocked": stood / seconds, "client": 1e6 * cpu / pages}
        | {"pages": pages}
    )
