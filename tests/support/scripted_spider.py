"""A spider whose callbacks do what the pages of tests/support/random_site.py say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from scrapy import Request, Spider, signals
from scrapy.exceptions import DropItem, IgnoreRequest
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

PLANNED = "as planned"
"""What an exception of this module says."""
WAYS = {
    "dont_filter": ({}, True),
    "filter": ({"bloomlock_filter": False}, False),
    "record": ({"bloomlock_record": False}, False),
    "neither": ({"bloomlock_filter": False, "bloomlock_record": False}, False),
}


class ScriptedSpider(Spider):
    """Notes in the file of the setting NOTES what becomes of each page.

    A note is there before what it says is seen by others, whenever the process is killed.
    """

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.note_open, signals.spider_opened)
        return spider

    def note_open(self):
        self.note("open", "")

    def note(self, what, page):
        with Path(self.settings["NOTES"]).open("ab", buffering=0) as notes:
            notes.write(f"{what} {page}\n".encode())

    def parse(self, response):
        page = page_of(response.url)
        for step in response.json():
            if (output := self.output_of(response, page, step)) is not None:
                yield output
        self.note("done", page)

    async def parse_slowly(self, response):
        page = page_of(response.url)
        for step in response.json():
            if step[0] == "wait":
                await wait(0.001)
            if (output := self.output_of(response, page, step)) is not None:
                yield output
        self.note("done", page)

    def parse_list(self, response):
        return [*self.parse(response)]

    async def parse_at_once(self, response):
        await wait(0.001)
        return [*self.parse(response)]

    def output_of(self, response, page, step):
        """Do what a step says, and return what is to be yielded."""
        if step[0] == "raise":
            raise ZeroDivisionError(PLANNED)
        if step[0] == "item":
            return {"page": page, "kind": step[1]}
        if step[0] == "link":
            request = self.request_of(response.urljoin, step[1])
            if step[1]["way"] != "engine":
                return request
            self.crawler.engine.crawl(request)
        return None

    def request_of(self, join, link):
        meta, dont_filter = WAYS.get(link["way"], ({}, False))
        if_failed = link["if_failed"]
        return Request(
            join(link["url"]),
            callback=getattr(self, link["by"]),
            errback=None if if_failed is None else self.failed,
            meta={**meta, **({} if if_failed is None else {"if_failed": if_failed})},
            priority=link["priority"],
            dont_filter=dont_filter,
        )

    def failed(self, failure):
        """Yield what the page that led here says for this case."""
        request = failure.request
        for link in request.meta["if_failed"]:
            yield self.request_of(partial(urljoin, request.url), link)
        self.note("failed", page_of(request.url))


def page_of(url) -> int:
    return int(urlsplit(url).path[1:])


async def wait(seconds) -> None:
    """Make the crawl go on meanwhile, under any reactor."""
    over = Deferred()
    call_later(seconds, over.callback, None)
    await maybe_deferred_to_future(over)


class ScriptedPipeline:
    """Drops, delays or fails for items as they say, and notes those that leave it."""

    def __init__(self, spider):
        self._spider = spider

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.spider)

    async def process_item(self, item):
        if item["kind"] == "slow":
            await wait(0.001)
        if item["kind"] == "dropped":
            raise DropItem(PLANNED)
        if item["kind"] == "bad":
            raise ZeroDivisionError(PLANNED)
        self._spider.note("item", item["page"])
        return item


class IgnoringMiddleware:
    """Refuses some pages, as the middleware of robots.txt does."""

    def process_request(self, request):
        if request.url.endswith("?ignore=1"):
            raise IgnoreRequest(PLANNED)


class PassingMiddleware:
    """A spider middleware that changes nothing, nearer to the engine than ours."""

    async def process_spider_output(self, response, result):
        del response
        async for output in result:
            yield output
