"""The add-on is all a project needs, and what the project or the spider sets wins."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import scrapy_redis.scheduler
from click.testing import CliRunner
from crawling import ADDON, PATIENCE
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.misc import load_object

from bloomlock.cli import cli
from scrapy_ext import BatchingMiddleware, BloomDupeFilter, DownloadMiddleware, Scheduler

if TYPE_CHECKING:
    import redis
    from crawling import Runner, Site

PATH = "scrapy_ext.BatchingMiddleware"
SCRAPY_REDIS = "scrapy_redis.scheduler.Scheduler"
THEIRS: dict[str, Any] = {
    "SCHEDULER": SCRAPY_REDIS,
    "SCHEDULER_PERSIST": True,
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}
STOP: dict[str, Any] = {"CLOSESPIDER_PAGECOUNT": 5, "CONCURRENT_REQUESTS": 1}


class OwnScheduler(scrapy_redis.scheduler.Scheduler):  # type: ignore[misc]
    """A project's own kind of the scheduler of scrapy-redis."""


@pytest.mark.parametrize("is_of_spider", [False, True], ids=["project", "spider"])
@pytest.mark.parametrize(
    ("given", "dupefilter", "scheduler", "place"),
    [
        ({}, RFPDupeFilter, Scheduler, 10),
        ({"SPIDER_MIDDLEWARES": {PATH: 7}}, RFPDupeFilter, Scheduler, 7),
        ({"SPIDER_MIDDLEWARES": {PATH: None}}, RFPDupeFilter, Scheduler, None),
        ({"SCHEDULER": "scrapy_ext.Scheduler"}, RFPDupeFilter, Scheduler, 10),
        ({"SCHEDULER": SCRAPY_REDIS}, RFPDupeFilter, Scheduler, 10),
        ({"SCHEDULER": OwnScheduler}, BloomDupeFilter, OwnScheduler, 10),
    ],
)
def test_what_is_set_by_whom(
    given: dict[str, Any],
    dupefilter: type,
    scheduler: type,
    place: Any,
    is_of_spider: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spider, project = Spider, given
    if is_of_spider:
        spider, project = type("Own", (Spider,), {"custom_settings": given}), {}
    crawler = Crawler(spider, {**ADDON, **project})
    crawler.addons.load_settings(crawler.settings)
    found = crawler.settings
    assert load_object(found["DUPEFILTER_CLASS"]) is dupefilter
    assert load_object(found["SCHEDULER"]) is scheduler
    middlewares = {load_object(key): at for key, at in found.getdict("SPIDER_MIDDLEWARES").items()}
    assert middlewares == {BatchingMiddleware: place}
    middlewares = found.getdict("DOWNLOADER_MIDDLEWARES")
    assert {load_object(key): at for key, at in middlewares.items()} == {DownloadMiddleware: 10}
    assert ("which wins over the add-on" in caplog.text) is (scheduler is OwnScheduler)


def bloomlock(*words: str) -> str:
    """Run a command and return what it writes; an error, if its status is not 0."""
    done = CliRunner().invoke(cli, words)
    return done.stdout if done.exit_code == 0 else f"{done.exit_code}: {done.stderr}"


def test_the_queue_of_scrapy_redis_is_gone_on_with(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    """Also a list, and without the entry that is none. That of another class is refused."""
    site.links = lambda page: [page + 1, page + 2] if page < 20 else []
    settings = THEIRS | {"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.LifoQueue"}
    # Its own filter: what it has queued is not queued again.
    first = crawls.run(settings, **STOP)
    r.rpush("spider:requests", b"?")
    second = crawls.run(ADDON | settings)
    assert second.lines("were moved from the queue 'spider:requests' of scrapy-redis")
    assert second.reason == "finished"
    assert {*first.fetched, *second.fetched} == {f"/{page}" for page in range(22)}
    assert not r.exists("spider:requests")
    assert second.own("failed") == 1
    assert not second.lines("Processes of scrapy-redis push requests")
    own = {**settings, "SCHEDULER_QUEUE_CLASS": "__main__.PickyQueue"}
    r.rpush("spider:requests", b"?")
    (line,) = crawls.run(ADDON | own).lines("[bloomlock.scrapy] CRITICAL")
    assert "only those of scrapy-redis can be moved" in line


def test_processes_of_both_kinds_on_one_queue_are_refused(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    """At the start of one that joins; the first one finds it out at its end."""
    pushed, go = threading.Event(), threading.Event()

    def push(_: int) -> None:
        r.zadd("spider:requests", {b"?": 0})
        pushed.set()
        go.wait(PATIENCE)

    site.on_request = push
    first = crawls.start()
    pushed.wait(PATIENCE)
    joining = crawls.run()
    go.set()
    said = "Processes of scrapy-redis push requests to the queue 'spider:requests'"
    assert joining.code == 1
    assert joining.lines("[bloomlock.scrapy] CRITICAL")[0].count(said) == 1
    assert "ERROR" in first.finish().lines(said)[0]
    assert first.finish().reason == "finished"
    site.on_request = None
    assert crawls.run().lines("were moved from the queue 'spider:requests'")


def test_from_scrapy_redis_and_back(
    crawls: Runner, site: Site, valkey: str, r: redis.Redis
) -> None:
    site.links = lambda page: [page + 1, page + 2] if page < 20 else []
    first = crawls.run(THEIRS, **STOP)
    server = ("--url", valkey)
    told = bloomlock("scrapy-import", "spider:dupefilter", "--capacity", "2e6", *server)
    assert 'BLOOMLOCK_NAME = "spider"\nBLOOMLOCK_CAPACITY = 2000000\n' in told
    ours = {**ADDON, "REQUEST_FINGERPRINTER_CLASS": "scrapy_ext.ScrapyRedisFingerprinter"}
    ours |= {"BLOOMLOCK_CAPACITY": 2_000_000}
    second = crawls.run(ours, **STOP)
    assert second.lines("Goes on with the crawl 'spider'")
    assert second.lines("were moved from the queue 'spider:requests' of scrapy-redis")
    for words in (("failed", "another"), ("scrapy-import", "--undo", "another:requests")):
        assert bloomlock(*words, *server).startswith("2: Error: there is no crawl 'another' at")
    undone = bloomlock("scrapy-import", "--undo", "spider:requests", *server)
    assert undone == f"{r.zcard('spider:requests')} requests moved to spider:requests\n"
    third = crawls.run(THEIRS)
    assert third.reason == "finished"
    # Its set has not heard of what was found in between.
    fetched = {*first.fetched, *second.fetched, *third.fetched}
    assert fetched == {f"/{page}" for page in range(22)}
    assert not first.pages & second.pages - Counter(["/0"])


def test_failed_requests_by_the_command_line(crawls: Runner, site: Site, valkey: str) -> None:
    site.answer = lambda path: [503 if path == "/3" else 200]
    assert crawls.run(RETRY_ENABLED=False).own("failed") == 1
    failed = ["failed", "spider", "--url", valkey]
    shown = bloomlock(*failed)
    assert f"{site.url}/3" in shown
    assert "status 503" in shown
    assert bloomlock(*failed, "--retry") == "1 put back\n"
    site.answer = None
    assert crawls.run().fetched == ["/3"]
    assert bloomlock(*failed) == ""
