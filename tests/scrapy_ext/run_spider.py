"""Runs one real Scrapy process for the tests: reads a task as JSON, prints what happened."""

from __future__ import annotations

import json
import sys
from urllib.parse import urlsplit

from scrapy import Spider
from scrapy.crawler import CrawlerProcess

FETCHED: list[str] = []


class LinkSpider(Spider):
    """Follows every link; `name` and `start_urls` are arguments."""

    def parse(self, response):
        FETCHED.append(urlsplit(response.url).path)
        for target in response.xpath("//a/@href").getall():
            yield response.follow(target)


class OneForAllFingerprinter:
    """Takes all requests for the same."""

    def fingerprint(self, request):
        del request
        return b"the same"


class BrokenFingerprinter:
    """Fails for every request."""

    def fingerprint(self, request):
        raise ZeroDivisionError(request.url)


def main() -> None:
    task = json.loads(sys.stdin.read())
    settings = {
        "TELNETCONSOLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter",
        **task["settings"],
    }
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(LinkSpider)
    process.crawl(crawler, name=task["name"], start_urls=[task["start"]])
    process.start()
    stats = {} if process.bootstrap_failed else crawler.stats.get_stats()
    wanted = {key: value for key, value in stats.items() if isinstance(value, int | float | str)}
    print(json.dumps({"fetched": FETCHED, "stats": wanted}))
    sys.exit(process.bootstrap_failed)


if __name__ == "__main__":
    main()
