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

SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    "CONCURRENT_REQUESTS": 8,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
    "DOWNLOAD_DELAY": 0,
}


def note_blocking_calls() -> list[float]:
    """Return a list that gets the seconds of each call in which this thread stands.

    Those are calls of sockets that are not asynchronous, and waits for another thread: an Event, a
    Future and a Queue wait by a Condition.
    """
    seconds: list[float] = []
    reactor = threading.get_ident()

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(one: Any, *args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(one, *args, **options)
            finally:
                blocks = not isinstance(one, socket.socket) or one.gettimeout() != 0
                if blocks and threading.get_ident() == reactor:
                    seconds.append(time.perf_counter() - start)

        return timed

    for name in ("connect", "recv", "recv_into", "send", "sendall"):
        setattr(socket.socket, name, noted(getattr(socket.socket, name)))
    threading.Condition.wait = noted(threading.Condition.wait)  # type: ignore[method-assign]
    return seconds


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
    journal = os.open(f"{folder}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(item: dict[str, str]) -> None:
        os.write(journal, item["path"].encode() + b"\n")

    def look() -> None:
        looks.append((time.perf_counter(), time.process_time(), sum(blocking)))

    looks: list[tuple[float, float, float]] = []
    blocking = note_blocking_calls()
    process = CrawlerProcess({**SETTINGS, **settings})
    crawler = process.create_crawler(LinkSpider)
    crawler.signals.connect(note, signals.item_scraped)
    crawler.signals.connect(look, signals.spider_opened)
    crawler.signals.connect(look, signals.spider_closed)
    process.crawl(crawler, start_urls=[start])
    process.start()
    pages = crawler.stats.get_value("response_received_count", 0) if crawler.stats else 0
    if process.bootstrap_failed or not pages:
        raise SystemExit(1)
    seconds, cpu, blocked = (after - before for before, after in zip(*looks, strict=True))
    measured = {"rate": pages / seconds, "client": 1e6 * cpu / pages, "blocked": blocked / seconds}
    pipe.send({**measured, "pages": pages})
