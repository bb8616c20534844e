"""Runs real Scrapy processes for the tests, as forks of one that has imported what they need.

Started with the number of a socket. A request is a task as JSON, which names the files for what the
process prints and for its log, with a file for its exit status. The answer is its id. Classes of
this module are settings by their names: "__main__.PickyPipeline".
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from fork_end import run_to_end, serve
from redis.sentinel import Sentinel
from scrapy import Request, Spider, signals
from scrapy.cmdline import execute
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import CloseSpider, DropItem
from scrapy.settings import Settings
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.misc import load_object
from twisted.internet.defer import Deferred

from scrapy_ext.spiders import RedisMixin

FETCHED: list[str] = []


def path_of(url) -> str:
    """Return what comes after the host."""
    return "/" + url.partition("//")[2].partition("/")[2]


async def wait(seconds=0.001) -> None:
    """Make the crawl go on meanwhile, under any reactor."""
    over = Deferred()
    call_later(seconds, over.callback, None)
    await maybe_deferred_to_future(over)


class LinkSpider(Spider):
    """Follows every link. `name` and `start_urls` are arguments, and what stands in the class.

    Attributes:
        items: Paths of pages that give an item, before their requests.
        raises, closes: Paths of pages whose callback raises after the item, or closes the spider.
        how: For the path of a link, arguments of its request; "partial": its callback is no method
            of the spider; "complex": its `meta` has what JSON cannot hold.
        dies: An event and a path: the process kills itself there. "asked": the request is sent;
            "callback": it begins; "half": the first of its requests is queued and no other is
            made; "item": its callback has ended and its item is in a pipeline; "done": callback and
            items are done.
    """

    items = raises = closes = dies = ()
    how = {}  # noqa: RUF012 - arguments take its place

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.opened, signals.spider_opened)
        crawler.signals.connect(spider.asked, signals.request_reached_downloader)
        crawler.signals.connect(spider.dropped, signals.request_dropped)
        return spider

    def opened(self):
        self.note("open", "")

    def dropped(self):
        self.crawler.stats.inc_value("dropped")

    def asked(self, request):
        self.may_die("asked", path_of(request.url))

    def may_die(self, event, path):
        if [event, path] == [*self.dies]:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, what, path):
        """Write to the file of the setting NOTES, before others see what the note says."""
        if name := self.settings["NOTES"]:
            with Path(name).open("ab", buffering=0) as notes:
                notes.write(f"{what} {path}\n".encode())

    def requests_of(self, response):
        for target in response.xpath("//a/@href").getall():
            options = {**self.how.get(urlsplit(target).path, {})}
            callback = partial(self.parse) if options.pop("partial", False) else self.parse
            if options.pop("complex", False):
                options["meta"] = {"complex": 1j}
            yield response.follow(target, callback, **options)

    def parse(self, response):
        path = path_of(response.url)
        FETCHED.append(path)
        if path in self.items:
            yield {"path": path}
        if path in self.raises:
            raise ZeroDivisionError(path)
        if path in self.closes:
            raise CloseSpider("by itself")
        yield from self.requests_of(response)


class DyingSpider(LinkSpider):
    """Notes which pages and items are done; with `dies` it is killed."""

    async def parse(self, response):
        path = path_of(response.url)
        self.may_die("callback", path)
        yield {"path": path}
        if urlsplit(path).path in self.raises:
            raise ZeroDivisionError("as planned")
        enqueued = self.stat("scheduler/enqueued")
        for request in self.requests_of(response):
            yield request
            if [*self.dies] == ["half", path]:
                await self.grown("scheduler/enqueued", enqueued + 1)
                self.may_die("half", path)
        self.note("done", path)

    async def die_later(self, event, path):
        """Die when the queue has heard of what is done."""
        if [*self.dies] == [event, path]:
            await self.grown("bloomlock/trips", self.stat("bloomlock/trips") + 6)
            self.may_die(event, path)

    def stat(self, name):
        return self.crawler.stats.get_value(name, 0)

    async def grown(self, name, to):
        while self.stat(name) < to:
            await wait()


class Pipeline:
    """Lets all items pass."""

    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.crawler = crawler
        return made

    async def process_item(self, item):
        return item


class DyingPipeline(Pipeline):
    """Notes items that leave it; that of a page may be the end of the process."""

    async def process_item(self, item):
        spider = self.crawler.spider
        await spider.die_later("item", item["path"])
        await wait()
        spider.note("item", item["path"])
        deferred_from_coro(spider.die_later("done", item["path"]))
        return item


class LambdaSpider(LinkSpider):
    """Its callbacks are no methods, so its requests stay in the process that made them."""

    def parse(self, response):
        path = path_of(response.url)
        yield {"path": path}
        for target in response.xpath("//a/@href").getall():
            yield response.follow(target, lambda found, parse=self.parse: parse(found))
        self.note("done", path)


class InsistentSpider(LinkSpider):
    """Yields one request three times, whose callback is no method."""

    def parse(self, response):
        again = response.follow("/1", lambda _: None, dont_filter=True)
        yield from (again, again, again)


class RenamedSpider(LinkSpider):
    """Follows links by a callback that another version of the spider does not have."""

    def requests_of(self, response):
        for request in super().requests_of(response):
            yield request.replace(callback=self.parse_one)

    def parse_one(self, response):
        yield from self.parse(response)


class SlowlyClosedPipeline(Pipeline):
    """Closes when the file of the setting CLOSE_WHEN is there."""

    async def close_spider(self):
        name = self.crawler.settings["CLOSE_WHEN"]
        self.crawler.spider.note("closing", "")
        while not os.path.exists(name):  # noqa: ASYNC240, PTH110
            await wait(0.01)


class MixedSpider(LinkSpider):
    """Yields items between requests, repeats, other sites, and waits; all of it from pages."""

    allowed_domains = ("127.0.0.1",)

    async def start(self):
        (url,) = self.start_urls
        for suffix in ("?start", "?start", "", "?again"):
            yield Request(url + suffix)
            yield {"page": "/start"}

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


class LoginSpider(LinkSpider):
    """Begins at one page once for each of two cookie jars."""

    async def start(self):
        for jar in (1, 2):
            yield Request(*self.start_urls, dont_filter=True, meta={"cookiejar": jar})


class FeedSpider(RedisMixin, LinkSpider):
    """Reads where to start from Redis."""


class PickyPipeline:
    """Drops the item of page 1, and fails for that of page 2."""

    async def process_item(self, item):
        await wait()
        if item["path"] == "/1":
            raise DropItem("as asked")
        if item["path"] == "/2":
            raise ZeroDivisionError
        return item


def with_shelf(values, spider):
    """Fill names of feeds, as a project does for FEED_URI_PARAMS."""
    return {**values, "shelf": f"{spider.name}-items"}


def master_of_sentinels(sentinel_port, **options):
    """Make a client, as a project does for REDIS_PARAMS["redis_cls"]."""
    return Sentinel([("127.0.0.1", sentinel_port)]).master_for("pages", **options)


def crawl(task) -> int:
    """Crawl with a spider for each name, print what happened, and return the exit status."""
    settings = {"TELNETCONSOLE_ENABLED": False, "ROBOTSTXT_OBEY": False, **task["settings"]}
    process = CrawlerProcess(settings)
    crawlers = []

    def start(name):
        crawlers.append(process.create_crawler(globals()[task["spider"]]))
        arguments = {"name": name, "start_urls": [task["start"]], **task["arguments"]}
        return process.crawl(crawlers[-1], **arguments)

    first, *others = task["names"]
    ended = start(first)
    for name in others:
        if task["one_by_one"]:
            ended.addCallback(lambda _, name=name: start(name))
        else:
            start(name)
    process.start()
    stats = {} if process.bootstrap_failed else crawlers[0].stats.get_stats()
    kinds = int | float | str | list
    wanted = {key: value for key, value in stats.items() if isinstance(value, kinds)}
    print(json.dumps({"fetched": FETCHED, "stats": wanted}))
    return int(process.bootstrap_failed)


def run(task) -> None:
    """Do a task, and exit."""
    if "command" not in task:
        sys.exit(crawl(task))
    os.chdir(task["folder"])
    os.environ.update(task["environment"])
    execute(["scrapy", *task["command"]])


def become(_files, task) -> NoReturn:
    """Go on as a process that crawls."""
    for number, name in enumerate(task["outputs"], 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    run_to_end(lambda: run(task))


if __name__ == "__main__":
    for name in ("scrapy_ext", "scrapy_redis.scheduler", "bloomlock.filters._sync.bloom"):
        importlib.import_module(name)
    # What each process would import by itself, half of its time.
    for name in ("EXTENSIONS_BASE", "DOWNLOADER_MIDDLEWARES_BASE", "SPIDER_MIDDLEWARES_BASE"):
        for path in Settings().get(name):
            load_object(path)
    for path in Settings().get("DOWNLOAD_HANDLERS_BASE").values():
        load_object(path)
    assert "twisted.internet.reactor" not in sys.modules, "each process installs its own"
    serve(become)
