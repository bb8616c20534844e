"""The stats of a crawl about its filter, and the warning that its rate is above the asked one."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.spiders import Spider
from scrapy.statscollectors import MemoryStatsCollector

from bloomlock import BloomFilter
from scrapy_ext import stats
from scrapy_ext.duplicates import DuplicateLog
from scrapy_ext.stats import FilterStats

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.scrapy_ext.conftest import Crawl, Site

OURS = {"SCHEDULER": "scrapy_ext.Scheduler"}
PATIENCE = 300.0
WARNING = "takes a new request for a seen one at a rate of"


@pytest.fixture
def chain(site: Site, r: redis.Redis) -> Site:
    """Each page links to all before it and to the next one, so the crawl goes page by page."""
    del r
    site.links = lambda page: range(min(page + 2, 8))
    return site


def counting_crawler() -> Crawler:
    """Return a crawler that has stats, without what get_crawler asks of the reactor."""
    crawler = Crawler(Spider)
    crawler.stats = MemoryStatsCollector(crawler)
    return crawler


def test_what_checks_cost_is_counted(chain: Site, crawl: Callable[..., Crawl]) -> None:
    options = {"BLOOMLOCK_RECORD_UNFILTERED": True, "BLOOMLOCK_MAX_STALENESS": 3600}
    checked = sum(min(page + 2, 8) for page in range(8))
    batches = crawl(**options)
    assert sorted(batches.fetched) == chain.paths
    assert batches.own("checked") == checked
    # The start page, then one trip for each page but the last, which links to nothing new.
    assert batches.own("trips") == batches.own("batches") == 8
    assert batches.own("waits") == batches.own("wait_seconds") == 0
    assert batches.own("cache_hits") == checked - 7
    assert batches.own("estimated_count") == 8
    assert 0 < batches.own("fill_ratio") < 0.01
    assert 0 < batches.own("current_error_rate") < 1e-6
    assert WARNING not in batches.log

    single = crawl("single", SPIDER_MIDDLEWARES={}, **options)
    assert single.own("trips") == single.own("waits") == 8
    assert single.own("batches") == 0
    assert single.own("wait_seconds") > 0
    assert single.own("cache_hits") == checked - 7

    again = crawl("single", SPIDER_MIDDLEWARES={}, BLOOMLOCK_NEAR_CACHE=0, **options)
    assert again.fetched == ["/0"]
    # The start page and its two links.
    assert (again.own("waits"), again.own("cache_hits")) == (3, 0)


@pytest.mark.usefixtures("r")
def test_what_the_scheduler_refuses_last_is_counted(
    site: Site, crawl: Callable[..., Crawl]
) -> None:
    """No round trip follows: the last request has no form on the server, and leads to no other."""
    site.links = {0: [1], 1: [1, 1]}.__getitem__
    result = crawl(spider="OddSpider", BLOOMLOCK_MAX_STALENESS=3600, **OURS)
    assert result.fetched == ["/0", "/1"]
    assert result.own("checked") == 4
    assert result.own("cache_hits") == result.stats["dupefilter/filtered"] == 2


@pytest.mark.parametrize("settings", [{}, OURS], ids=["filter", "scheduler"])
def test_a_rate_above_the_asked_one_is_warned_of_once(
    settings: dict[str, Any], crawl: Callable[..., Crawl], r: redis.Redis
) -> None:
    before = BloomFilter("spider:dupefilter", 1000, 0.001, client=r)
    before.update(f"{number}" for number in range(1500))
    result = crawl(BLOOMLOCK_ERROR_RATE=0.001, **settings)
    assert result.own("current_error_rate") > 0.001
    assert result.own("capacity_used") > 1.4
    assert result.own("checked") > 0
    (line,) = [line for line in result.log.splitlines() if WARNING in line]
    assert "WARNING: The filter 'spider:dupefilter' takes" in line
    assert "the 0.001 that was asked for" in line
    assert "and is made for 1,000. " in line


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("settings", [{}, OURS], ids=["filter", "scheduler"])
def test_a_filter_that_grows_is_for_what_it_can_grow_to(
    settings: dict[str, Any], crawl: Callable[..., Crawl]
) -> None:
    grows = {"BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 4}
    result = crawl(**grows, **settings)
    assert result.own("estimated_count") > 6
    assert 0 < result.own("capacity_used") < 0.1
    assert WARNING not in result.log


def test_the_fill_is_looked_at_while_the_crawl_runs(
    r: redis.Redis,
    valkey: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "bloomlock.scrapy")
    monkeypatch.setattr(stats, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(stats, "LONGEST_PAUSE_S", 0.02)
    crawler = counting_crawler()
    watched = FilterStats(crawler)
    shared = BloomFilter("x", 1000, 0.01, client=valkey)

    def value(name: str) -> Any:
        return crawler.stats.get_value(f"bloomlock/{name}")

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - it becomes true by a timer
                await asyncio.sleep(0.01)

    async def scenario() -> None:
        watched.watch(shared)
        await until(lambda: value("fill_ratio") == 0)
        shared.update(f"{number}" for number in range(500))
        await until(lambda: value("fill_ratio") > 0)
        assert WARNING not in caplog.text
        # A look that fails is not the last one.
        r.execute_command("ACL", "SETUSER", "default", "-bitcount")
        try:
            await until(lambda: "Looking at the filter 'x' failed" in caplog.text)
        finally:
            r.execute_command("ACL", "SETUSER", "default", "+@all")
        shared.update(f"{number}" for number in range(3000))
        await until(lambda: value("current_error_rate") > 0.01)
        full = value("fill_ratio")
        shared.update(f"{number}" for number in range(4000))
        await until(lambda: value("fill_ratio") > full)
        watched.stop()
        shared.clear()
        await asyncio.sleep(0.1)
        assert value("fill_ratio") > full

    asyncio.run(scenario())
    assert caplog.text.count(WARNING) == 1
    shared.close()


def test_the_sample_of_what_is_refused_is_a_random_one() -> None:
    times: Counter[str] = Counter()
    for _ in range(200):
        crawler = counting_crawler()
        log = DuplicateLog(crawler, sample=5)
        for number in range(20):
            log.log(Request(f"https://example.org/{number}"), Spider("s"))
            kept = crawler.stats.get_value("bloomlock/refused_sample")
            assert len(kept) == len(set(kept)) == min(number + 1, 5)
        times.update(kept)
    # One of them is never, or always, kept with a probability below 1e-23.
    assert len(times) == 20
    assert max(times.values()) < 200


@pytest.mark.parametrize("settings", [{}, OURS], ids=["filter", "scheduler"])
def test_what_is_refused_is_in_the_stats(
    settings: dict[str, Any], chain: Site, crawl: Callable[..., Crawl]
) -> None:
    options = {"BLOOMLOCK_RECORD_UNFILTERED": True, **settings}
    result = crawl(BLOOMLOCK_AUDIT_SAMPLE=1000, **options)
    _, _, dump = result.log.partition("Dumping Scrapy stats")
    urls = re.findall(f"'{chain.url}(/[0-9])'", dump)
    # Each page links to those before it, to itself, and to the next one.
    links = Counter(f"/{link}" for page in range(8) for link in chain.links(page))
    assert Counter(urls) == links - Counter(chain.paths[1:])
    assert result.stats["dupefilter/filtered"] == len(urls)
    assert "refused_sample" not in crawl("another", **options).log
