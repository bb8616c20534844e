"""Runs real Scrapy processes for the tests, as forks of one that has imported what they need.

Started with the number of a socket. A request is a task as JSON, with three files: for what the
process prints, for its log, and for its exit status. The answer is its id.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess

FETCHED: list[str] = []


class LinkSpider(Spider):
    """Follows every link; `name` and `start_urls` are arguments."""

    def parse(self, response):
        FETCHED.append(urlsplit(response.url).path)
        for target in response.xpath("//a/@href").getall():
            yield response.follow(target)


class SiteSpider(LinkSpider):
    """Stays on the site, and starts on each of the setting STARTS."""

    allowed_domains = ("127.0.0.1",)

    async def start(self):
        for url in self.settings.getlist("STARTS"):
            yield Request(url, dont_filter=True)


class OneForAllFingerprinter:
    """Takes all requests for the same."""

    def fingerprint(self, request):
        del request
        return b"the same"


class BrokenFingerprinter:
    """Fails for every request."""

    def fingerprint(self, request):
        raise ZeroDivisionError(request.url)


def crawl(task) -> int:
    """Crawl, print what happened, and return the exit status."""
    settings = {
        "TELNETCONSOLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter",
        **task["settings"],
    }
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(globals()[task.get("spider", "LinkSpider")])
    process.crawl(crawler, name=task["name"], start_urls=[task["start"]])
    process.start()
    stats = {} if process.bootstrap_failed else crawler.stats.get_stats()
    wanted = {key: value for key, value in stats.items() if isinstance(value, int | float | str)}
    print(json.dumps({"fetched": FETCHED, "stats": wanted}))
    return int(process.bootstrap_failed)


def become(outputs, task) -> None:
    """Go on as a process that crawls."""
    for number, file in enumerate(outputs, 1):
        os.dup2(file, number)
        os.close(file)
    sys.exit(crawl(task))


def await_end(child, status) -> None:
    """Write how a process ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, b"%d" % code)
    os.close(status)


def serve(control) -> None:
    """Answer requests until the other end is closed."""
    while True:
        line, files, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not line:
            return
        *outputs, status = files
        child = os.fork()
        if child == 0:
            control.close()
            os.close(status)
            become(outputs, json.loads(line))
        for file in outputs:
            os.close(file)
        threading.Thread(target=await_end, args=(child, status)).start()
        control.sendall(b"%d\n" % child)


if __name__ == "__main__":
    for name in ("scrapy_ext", "scrapy_redis.scheduler", "bloomlock.filters.bloom"):
        importlib.import_module(name)
    assert "twisted.internet.reactor" not in sys.modules, "each process installs its own"
    serve(socket.socket(fileno=int(sys.argv[1])))
