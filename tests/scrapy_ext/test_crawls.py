"""Crawls by the add-on: what a user of Scrapy expects of one after the other, and of several."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from crawling import ADDON, ALONE, PATIENCE, PLAIN
from proxy import Proxy
from servers import wait_until

from bloomlock.catalog import list_filters
from scrapy_ext.crawl_state import CrawlRecord

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from crawling import Result, Runner, Site

SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
COUNTED = (
    "dupefilter/filtered",
    "dropped",
    "offsite/filtered",
    "scheduler/enqueued",
    "scheduler/dequeued",
    "response_received_count",
    "item_scraped_count",
    "finish_reason",
)
ONE_BY_ONE = {"CONCURRENT_REQUESTS": 1}
GRAPH = 60


@pytest.fixture
def graph(site: Site) -> Counter[str]:
    """A site of 60 pages with 10 links each; return its paths. (The start page comes twice.)"""
    chance = random.Random(1)
    pages = {page: chance.choices(range(GRAPH), k=9) for page in range(GRAPH)}
    site.links = lambda page: [*pages[page], (page + 1) % GRAPH]
    return Counter(["/0", *(f"/{page}" for page in range(GRAPH))])


def counted(result: Result) -> dict[str, Any]:
    return {name: result.stats.get(name) for name in COUNTED}


@pytest.mark.parametrize(
    ("set_up", "reactor"),
    [(ADDON, {}), (ADDON, SELECT), (ALONE, {})],
    ids=["asyncio", "select", "filter alone"],
)
def test_the_same_pages_items_and_stats_as_scrapy_alone(
    set_up: dict[str, Any], reactor: dict[str, Any], crawls: Runner
) -> None:
    plain = crawls.run(PLAIN, spider="MixedSpider", **reactor)
    ours = crawls.run(set_up, spider="MixedSpider", **reactor)
    assert counted(ours) == counted(plain)
    assert ours.pages == plain.pages
    assert len(ours.lines("no more duplicates will be shown")) == 1
    assert "spider_exceptions/count" not in ours.stats
    assert ours.own("errors") == 0


@pytest.mark.skipif(
    scrapy.version_info < (2, 19), reason="two runs of Scrapy 2.14 alone differ in their order"
)
def test_the_same_order_as_scrapy_alone(crawls: Runner, site: Site) -> None:
    chance = random.Random(2)
    pages = {page: chance.choices(range(100), k=3) for page in range(100)}
    site.links = pages.__getitem__
    for set_up in (PLAIN, ADDON):
        crawls.run(set_up, LOG_LEVEL="INFO", **ONE_BY_ONE)
    half = len(site.requested) // 2
    assert half > 75
    assert site.requested[:half] == site.requested[half:]


def test_a_second_run_is_anew_also_while_the_first_one_closes(
    crawls: Runner, site: Site, tmp_path: Path, r: redis.Redis
) -> None:
    pages = Counter([*site.paths, "/0"])
    go = tmp_path / "go"
    pipeline = {"ITEM_PIPELINES": {"__main__.SlowlyClosedPipeline": 1}, "CLOSE_WHEN": str(go)}
    first = crawls.start(ADDON | pipeline)
    wait_until(lambda: crawls.noted("closing").total() == 1, PATIENCE)
    second = crawls.run()
    go.touch()
    assert first.finish().pages == second.pages == crawls.run().pages == pages
    assert first.finish().reason == second.reason == "finished"
    assert r.keys("*") == [b"{spider}:crawl"]


@pytest.mark.parametrize("how", ["SIGTERM", "page count"])
def test_a_crawl_that_is_stopped_goes_on_loudly(
    how: str, crawls: Runner, site: Site, graph: Counter[str], r: redis.Redis
) -> None:
    limit = {"CLOSESPIDER_PAGECOUNT": 20} if how == "page count" else {}
    started = crawls.start(ADDON, CONCURRENT_REQUESTS=4, **limit)
    if how == "SIGTERM":
        site.on_request = lambda count: count == 20 and started.send(signal.SIGTERM)
    first = started.finish()
    assert 20 <= len(first.fetched) < GRAPH
    assert first.lines("wait for the next start")
    second = crawls.run()
    (line,) = second.lines("Goes on with the crawl 'spider'")
    assert "WARNING" in line
    assert f"({len(first.fetched)} done, " in line
    assert first.pages + second.pages == graph
    assert list_filters(client=r) == []


def test_a_crawl_that_is_begun_anew(crawls: Runner, graph: Counter[str]) -> None:
    crawls.run(CLOSESPIDER_PAGECOUNT=5)
    anew = crawls.run(SCHEDULER_FLUSH_ON_START=True)
    assert anew.pages == graph
    assert not anew.lines("Goes on with")
    assert anew.lines("SCHEDULER_FLUSH_ON_START of scrapy-redis is read")


@pytest.mark.free_running
def test_processes_share_a_crawl(crawls: Runner, site: Site, graph: Counter[str]) -> None:
    all_there = threading.Event()
    site.on_request = lambda _: all_there.wait(PATIENCE)
    started = [crawls.start() for _ in range(3)]
    wait_until(lambda: crawls.noted("open").total() == 3, PATIENCE)
    all_there.set()
    done = [process.finish() for process in started]
    assert sum((one.pages for one in done), Counter()) == graph
    assert [one.reason for one in done] == ["finished"] * 3
    assert sum(len(one.lines("Joins ")) for one in done) == 2


def test_equal_start_requests_are_fetched_once_each_whoever_makes_them(
    crawls: Runner, site: Site
) -> None:
    all_there = threading.Event()
    site.links = lambda _: ()
    site.on_request = lambda _: all_there.wait(PATIENCE)
    both = [crawls.start(spider="LoginSpider") for _ in range(2)]
    wait_until(lambda: crawls.noted("open").total() == 2, PATIENCE)
    all_there.set()
    assert [process.finish().reason for process in both] == ["finished"] * 2
    assert site.requested == ["/0"] * 2


def test_crawlers_of_one_process_share_by_name_like_processes(crawls: Runner, site: Site) -> None:
    pages = Counter([*site.paths, "/0"])
    assert crawls.run(arguments={"category": "1"}, names=("spider", "spider")).pages == pages
    assert crawls.run(names=("spider", "other")).pages == pages + pages
    one_by_one = crawls.run(names=("spider", "spider"), one_by_one=True)
    assert one_by_one.pages == pages + pages


def test_an_argument_that_differs_is_another_crawl(crawls: Runner, site: Site) -> None:
    stopped = {**ADDON, "CLOSESPIDER_PAGECOUNT": 2, **ONE_BY_ONE}
    first = crawls.run(stopped, arguments={"category": "1"})
    second = crawls.run(arguments={"category": "2"})
    assert (second.code, second.fetched) == (1, [])
    (line,) = second.lines("[bloomlock.scrapy] CRITICAL")
    assert "with category = '1', and this spider has '2'" in line
    named = {**ADDON, "BLOOMLOCK_NAME": "%(name)s:%(category)s"}
    pages = Counter([*site.paths, "/0"])
    assert crawls.run(named, arguments={"category": "2"}).pages == pages
    third = crawls.run(arguments={"category": "1"})
    assert first.pages + third.pages == pages


def test_a_feed_is_not_overwritten_by_a_crawl_that_goes_on(crawls: Runner, tmp_path: Path) -> None:
    file = tmp_path / "spider-items.jl"
    feed = {"format": "jsonlines", "overwrite": True}
    feeds = {
        "FEEDS": {f"{tmp_path}/%(shelf)s.jl": feed},
        "FEED_URI_PARAMS": "__main__.with_shelf",
    }
    items = {"arguments": {"items": [f"/{page}" for page in range(8)]}}
    first = crawls.run(CLOSESPIDER_PAGECOUNT=3, **ONE_BY_ONE, **feeds, **items)
    assert first.lines("FEEDS write them later")
    before = file.read_text("utf-8")
    refused = crawls.run(**feeds, **items)
    assert (refused.code, file.read_text("utf-8")) == (1, before)
    (line,) = refused.lines("[bloomlock.scrapy] CRITICAL")
    assert f"FEEDS would overwrite {file}" in line
    crawls.run(**feeds, **items, BLOOMLOCK_RESUME=False)
    assert len(file.read_text("utf-8").splitlines()) == 9


def test_what_failed_is_kept_counted_and_put_back(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    site.links = lambda page: range(1, 8) if page == 0 else []
    site.answer = lambda path: [{"/3": 503, "/4": 404}.get(path, 200)]
    options = {
        "spider": "LinkSpider",
        "ITEM_PIPELINES": {"__main__.PickyPipeline": 1},
        "RETRY_TIMES": 1,
    }
    arguments = {"items": ["/1", "/2"], "raises": ["/5"]}
    first = crawls.run(arguments=arguments, **options)
    assert first.reason == "finished"
    assert first.own("failed") == 3
    assert "WARNING" in first.lines("3 requests of the crawl 'spider' failed and are kept")[0]
    errors = sorted(value.split(b"\0")[0].decode() for value in r.hvals("{spider}:failed"))
    assert errors == ["ZeroDivisionError: ", "ZeroDivisionError: /5", "status 503"]


def test_a_page_that_closes_the_spider_has_failed(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    """Its callback was cut off, so requests that it would have made are missing."""
    site.links = lambda page: {0: [1], 1: [2]}.get(page, [])
    first = crawls.run(spider="LinkSpider", arguments={"closes": ["/1"]})
    assert (first.reason, first.fetched) == ("by itself", ["/0", "/1"])
    assert [value.split(b"\0")[0] for value in r.hvals("{spider}:failed")] == [
        b"CloseSpider: by itself"
    ]
    assert CrawlRecord(r, "spider").settle(retry=True) == 1
    assert crawls.run(spider="LinkSpider").fetched == ["/1", "/2"]


def test_a_callback_that_was_renamed_loses_nothing(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    site.links = lambda page: range(1, 5) if page == 0 else []
    stopped = {**ADDON, "CLOSESPIDER_PAGECOUNT": 1, **ONE_BY_ONE}
    crawls.run(stopped, spider="RenamedSpider")
    # This spider has no such callback.
    second = crawls.run(spider="LinkSpider")
    assert (second.fetched, second.own("failed"), second.reason) == ([], 4, "finished")
    assert r.hlen("{spider}:failed") == 4


@pytest.mark.parametrize("what", ["all", "filter", "crawl"])
def test_data_that_is_gone_ends_a_crawl_as_lost(
    what: str, crawls: Runner, site: Site, r: redis.Redis
) -> None:
    def lose(count: int) -> None:
        if count == 4:
            patterns = {"all": "*", "filter": "bloomlock:*", "crawl": "{spider}:crawl"}
            for key in r.scan_iter(patterns[what]):
                r.delete(key)

    site.on_request = lose
    lost = crawls.run(**ONE_BY_ONE)
    assert lost.reason == "bloomlock_lost"
    assert len(lost.lines("is gone from the server")) == 1
    assert what != "all" or r.keys("*") == []


def test_replies_that_are_lost_change_nothing(crawls: Runner, site: Site, valkey: str) -> None:
    """The first one is repeated by the filter, those after it by the exchange."""
    plain = crawls.run(PLAIN)
    for in_a_row in (1, 5):
        losses = ["after"] * in_a_row
        with Proxy(valkey) as proxy:
            # Those of steps that push requests.
            proxy.judge = lambda *_, proxy=proxy, losses=losses: (
                losses.pop() if losses and "url" in repr(proxy.command) else "pass"
            )
            ours = crawls.run(BLOOMLOCK_URL=proxy.url)
            assert proxy.lost == in_a_row
        assert (ours.own("errors") > 0) is (in_a_row > 1)
        assert counted(ours) == counted(plain)
        assert ours.pages == plain.pages


def test_what_the_log_says_of_settings(crawls: Runner, tmp_path: Path) -> None:
    result = crawls.run(
        JOBDIR=str(tmp_path),
        SCHEDULER_PERSIST=True,
        SCHEDULER_IDLE_BEFORE_CLOSE=0.1,
        DOWNLOAD_DELAY=0.01,
        DOWNLOAD_SLOTS={"elsewhere": {"delay": 1}},
    )
    assert result.reason == "finished"
    for sentence in (
        "in JOBDIR is only spider.state",
        "SCHEDULER_PERSIST is not needed any more",
        "SCHEDULER_IDLE_BEFORE_CLOSE of scrapy-redis is read",
        "0.01 s lie between two requests to a host",
    ):
        assert len(result.lines(sentence)) == 1


def test_pickles_are_used_where_json_has_no_form_and_can_be_refused(
    crawls: Runner, site: Site
) -> None:
    site.links = lambda page: [1] if page == 0 else []
    how = {"how": {"/1": {"meta": {"number": 1}, "complex": True}}}
    used = crawls.run(arguments=how)
    assert (used.own("pickled"), used.pages["/1"]) == (1, 1)
    assert used.lines("Requests with a complex are pickled")
    how["how"]["/1"]["dont_filter"] = True
    refused = crawls.run(arguments=how, BLOOMLOCK_PICKLE=False)
    assert (refused.own("pickled"), refused.pages["/1"], refused.own("failed")) == (0, 1, 0)
    assert refused.stats["scheduler/unserializable"] == 1


def test_the_name_of_a_download_slot_may_be_anything(crawls: Runner, site: Site) -> None:
    site.links = lambda page: [1, 2] if page == 0 else []
    how = {"/1": {"meta": {"download_slot": 5}}}
    assert crawls.run(arguments={"how": how}).pages == Counter(["/0", "/1", "/2"])
