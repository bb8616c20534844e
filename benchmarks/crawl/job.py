"""What a Scrapy process of the benchmarks does: it crawls, and answers what it measured."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Spider, signals
from scrapy.crawler import CrawlerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        looks.append((time.perf_counter(), time.process_time()))

    looks: list[tuple[float, float]] = []
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
    seconds, cpu = (after - before for before, after in zip(*looks, strict=True))
    pipe.send({"rate": pages / seconds, "client": 1e6 * cpu / pages, "pages": pages})
