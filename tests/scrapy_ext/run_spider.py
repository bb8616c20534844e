"""Runs real Scrapy processes for the tests, as forks of one that has imported what they need.

Started with the number of a socket. A request is a task as JSON, with three files: for what the
process prints, for its log, and for its exit status. The answer is its id.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import urljoin, urlsplit

from fork_end import run_to_end
from scrapy import Request, Spider, signals
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import CrawlerProcess
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import CloseSpider, DropItem, IgnoreRequest
from scrapy.settings import Settings
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.misc import load_object
from scrapy.utils.request import referer_str
from scripted_spider import ScriptedSpider  # noqa: F401 - found by its name
from twisted.internet.defer import Deferred

from bloomlock import BloomFilter
from scrapy_ext.dupefilter import BloomDupeFilter
from scrapy_ext.spiders import RedisSpider

FETCHED: list[str] = []
EVENTS: list[list[str]] = []


class LinkSpider(Spider):
    """Follows every link; `name` and `start_urls` are arguments."""

    raises = items = ()

    def parse(self, response):
        path = urlsplit(response.url).path
        FETCHED.append(path)
        if path in self.items:
            yield {"path": path}
        if path in self.raises:
            raise ZeroDivisionError(path)
        for target in response.xpath("//a/@href").getall():
            yield response.follow(target)


class ControlSpider(LinkSpider):
    """Hands on the `meta` of each response, and adds what the argument says for the path."""

    meta = {}  # noqa: RUF012 - Scrapy's way

    def parse(self, response):
        FETCHED.append(urlsplit(response.url).path)
        for target in response.xpath("//a/@href").getall():
            meta = {**response.meta, **self.meta.get(target, {})}
            yield response.follow(target, meta=meta)


class UnfilteredSpider(LinkSpider):
    """Records pages that it asks for with `dont_filter`; those of `beside` not by a callback."""

    beside = ()

    def parse(self, response):
        FETCHED.append(urlsplit(response.url).path)
        meta = {"bloomlock_record": True}
        for target in response.xpath("//a/@href").getall():
            request = response.follow(target, dont_filter=True, meta=meta)
            if target in self.beside:
                self.crawler.engine.crawl(request)
            else:
                yield request


class NotingSpider(LinkSpider):
    """Writes to the file of the setting NOTES which pages it asks for, and whose callbacks ended.

    A note is there before what it says is seen by others, whenever the process is killed.
    """

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.note_request, signals.request_reached_downloader)
        return spider

    def note_request(self, request):
        self.note("asked", request.url)

    def note(self, what, url):
        with Path(self.settings["NOTES"]).open("ab", buffering=0) as notes:
            notes.write(f"{what} {urlsplit(url).path}\n".encode())

    def parse(self, response):
        yield from super().parse(response)
        self.note("done", response.url)


class SiteSpider(LinkSpider):
    """Stays on the site, and starts on each of the setting STARTS."""

    allowed_domains = ("127.0.0.1",)

    async def start(self):
        for url in self.settings.getlist("STARTS"):
            yield Request(url, dont_filter=True)


class EvenPages:
    """A spider middleware that lets no request to a page with an odd number through."""

    async def process_spider_output(self, response, result):
        del response
        async for output in result:
            if not isinstance(output, Request) or int(path_of(output.url)) % 2 == 0:
                yield output


class PickyQueue(FifoMemoryQueue):
    """A queue that fails for one request."""

    def push(self, request):
        if request.url.endswith("/3"):
            raise RuntimeError("not this one")
        super().push(request)


class NotingPipeline:
    """Notes for `MixedSpider` when an item comes to the pipelines."""

    def process_item(self, item):
        EVENTS.append([item["page"], "item begins"])
        return item


class MixedSpider(LinkSpider):
    """Yields items between requests, repeats, other sites, and waits; all of it from pages.

    What reaches the engine is printed in its order, with the page it comes from.
    """

    allowed_domains = ("127.0.0.1",)

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.note_request, signals.request_scheduled)
        crawler.signals.connect(spider.note_item, signals.item_scraped)
        return spider

    def note_request(self, request):
        EVENTS.append([path_of(referer_str(request) or "//start"), path_of(request.url)])

    def note_item(self, item):
        EVENTS.append([item["page"], "item"])

    async def start(self):
        (url,) = self.start_urls
        for suffix in ("?start", "?start", "", "?again"):
            yield Request(url + suffix)
            yield {"page": "start"}

    async def parse(self, response):
        path = path_of(response.url)
        FETCHED.append(path)
        yield {"page": path}
        targets = response.xpath("//a/@href").getall()
        for target in targets:
            yield response.follow(target)
            yield Request("http://localhost:1/elsewhere")
        await wait()
        twice = response.follow("?twice", self.parse_nothing)
        yield twice
        yield twice
        yield {"page": path}
        yield response.follow(targets[0], dont_filter=True, callback=self.parse_nothing)
        await wait()

    def parse_nothing(self, response):
        FETCHED.append(path_of(response.url))


class UnheardSpider(MixedSpider):
    """Does the same, and has no ears for requests."""

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.disconnect(spider.note_request, signals.request_scheduled)
        return spider


class HearingSpider(LinkSpider):
    """Counts the signals of duplicates."""

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.hear, signals.request_dropped)
        return spider

    def hear(self):
        self.crawler.stats.inc_value("heard")


class HearingScheduler(Scheduler):
    """Counts what the engine schedules."""

    def enqueue_request(self, request):
        self.stats.inc_value("heard")
        return super().enqueue_request(request)


class HearingLog(BloomDupeFilter):
    """Counts what it logs."""

    def log(self, request, spider):
        self._crawler.stats.inc_value("heard")
        super().log(request, spider)


class HearingFilter(BloomDupeFilter):
    """Counts what it is asked for, and the start page."""

    def open(self):
        super().open()
        self._crawler.stats.inc_value("heard")

    def request_seen(self, request):
        self._crawler.stats.inc_value("heard")
        return super().request_seen(request)


class HearingOffsite(OffsiteMiddleware):
    """Counts what the engine asks it about, and not what is fetched."""

    def request_scheduled(self, request, spider):
        self.stats.inc_value("heard")
        super().request_scheduled(request, spider)


def path_of(url) -> str:
    """Return what comes after the host."""
    return url.partition("//")[2].partition("/")[2] or url.rpartition("/")[2]


class SeedSpider(LinkSpider):
    """Starts with 120 requests that are filtered; stops the crawl in order after it yields one."""

    async def start(self):
        (url,) = self.start_urls
        for number in range(120):
            if number == self.settings.getint("STOP_AFTER", -1):
                call_later(0, lambda: deferred_from_coro(self.crawler.stop_async()))
            yield Request(f"{url}?{number}", self.parse_nothing)

    parse_nothing = MixedSpider.parse_nothing


async def wait(seconds=0.001) -> None:
    """Make the crawl go on meanwhile, under any reactor."""
    over = Deferred()
    call_later(seconds, over.callback, None)
    await maybe_deferred_to_future(over)


async def recorded(spider, pages) -> None:
    """Make the crawl go on until so many of its pages are recorded as done."""
    client = spider.settings["REDIS_URL"]
    with BloomFilter.open(f"{spider.name}:dupefilter", client=client) as shared:
        while shared.count_claims().committed < pages:
            await wait(0.02)


class OddSpider(LinkSpider):
    """Its callback for odd pages is no method of its own."""

    def parse(self, response):
        FETCHED.append(urlsplit(response.url).path)
        for target in response.xpath("//a/@href").getall():
            odd = int(target[1:]) % 2
            yield response.follow(target, partial(self.parse) if odd else self.parse)


class FeedSpider(RedisSpider):
    """Reads where to start from Redis."""

    raises = items = ()
    parse = LinkSpider.parse


class DyingSpider(LinkSpider):
    """Is killed in the callback of page 3, before that yields what it found."""

    async def parse(self, response):
        if urlsplit(response.url).path == "/3":
            await recorded(self, 3)
            await asyncio.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        for output in super().parse(response):
            yield output


class AgainSpider(LinkSpider):
    """Page 0 leads to page 1, which its callback asks for once more, or its errback.

    With `ends` the process is "killed" when the second response is there.
    """

    ends = ""

    async def start(self):
        (url,) = self.start_urls
        yield Request(url)

    async def parse(self, response):
        path = urlsplit(response.url).path
        FETCHED.append(path)
        if path == "/0":
            yield response.follow("/1", errback=self.again)
        elif "again" not in response.meta:
            yield response.request.replace(dont_filter=True, meta={"again": True})
        elif self.ends == "killed":
            await recorded(self, 1)
            await wait(1.0)
            os.kill(os.getpid(), signal.SIGKILL)

    def again(self, failure):
        return failure.request.replace(dont_filter=True, meta={"again": True})


class RefusingMiddleware:
    """Refuses the page /1 at first, as the middleware of robots.txt does."""

    def process_request(self, request):
        if urlsplit(request.url).path == "/1" and "again" not in request.meta:
            raise IgnoreRequest("/1")


class ErrbackSpider(LinkSpider):
    """Page 0 leads to page 1, whose errback takes its time and asks for the pages 2 and 3.

    The argument `form` says how it is written. With `ends` the process is "killed" before the first
    request, or the errback "raises" or "closes" the spider behind it.
    """

    form, ends = "generator", ""

    async def start(self):
        (url,) = self.start_urls
        yield Request(url)

    def parse(self, response):
        path = urlsplit(response.url).path
        FETCHED.append(path)
        if path == "/0":
            errback = {
                "generator": self.failed,
                "coroutine": self.failed_at_once,
                "deferred": self.failed_later,
            }[self.form]
            yield response.follow("/1", errback=errback)

    async def failed(self, failure):
        for path in ("/2", "/3"):
            await wait(0.5)
            if self.ends == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            yield Request(urljoin(failure.request.url, path))
            yield {"path": path}
            if self.ends == "raises":
                raise ZeroDivisionError(path)
            if self.ends == "closes":
                raise CloseSpider("as asked")

    async def failed_at_once(self, failure):
        return [output async for output in self.failed(failure)]

    def failed_later(self, failure):
        return deferred_from_coro(self.failed_at_once(failure))


class ForcingSpider(LinkSpider):
    """Starts on page 1, tries it twice more by its errback, then forces page 2 by it."""

    async def start(self):
        (url,) = self.start_urls
        yield Request(urljoin(url, "/1"), errback=self.failed, dont_filter=True)

    def failed(self, failure):
        request = failure.request
        number = request.meta.get("number", 0) + 1
        if number < 3:
            yield request.replace(meta={**request.meta, "number": number})
        else:
            yield Request(urljoin(request.url, "/2"), dont_filter=True)


class PickyPipeline:
    """Drops the item of page 1, and fails for that of page 2."""

    async def process_item(self, item):
        await asyncio.sleep(0.05)
        if item["path"] == "/1":
            raise DropItem("as asked")
        if item["path"] == "/2":
            raise ZeroDivisionError
        return item


class StuckPipeline:
    """Never gives an item back."""

    async def process_item(self, item):
        del item
        await maybe_deferred_to_future(Deferred())


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
    # None: the default of Scrapy or of an add-on.
    settings = {name: value for name, value in settings.items() if value is not None}
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(globals()[task.get("spider", "LinkSpider")])
    arguments = task.get("arguments", {})
    process.crawl(crawler, name=task["name"], start_urls=[task["start"]], **arguments)
    process.start()
    stats = {} if process.bootstrap_failed else crawler.stats.get_stats()
    wanted = {key: value for key, value in stats.items() if isinstance(value, int | float | str)}
    print(json.dumps({"fetched": FETCHED, "stats": wanted, "events": EVENTS}))
    return int(process.bootstrap_failed)


def become(outputs, task) -> NoReturn:
    """Go on as a process that crawls."""
    for number, file in enumerate(outputs, 1):
        os.dup2(file, number)
        os.close(file)
    run_to_end(lambda: sys.exit(crawl(task)))


def await_end(child, status) -> None:
    """Write how a process ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, b"%d\n" % code)
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
    # What each process would import by itself, half of its time.
    for name in ("EXTENSIONS_BASE", "DOWNLOADER_MIDDLEWARES_BASE", "SPIDER_MIDDLEWARES_BASE"):
        for path in Settings().get(name):
            load_object(path)
    for path in Settings().get("DOWNLOAD_HANDLERS_BASE").values():
        load_object(path)
    assert "twisted.internet.reactor" not in sys.modules, "each process installs its own"
    # A fork that looked for garbage among these modules would copy their memory.
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
