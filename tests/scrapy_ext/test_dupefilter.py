"""Real Scrapy processes, with its own scheduler and that of scrapy-redis: exact counts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from servers import wait_until

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

PAGES = 8
LINKS_PER_PAGE = 2 * PAGES
SCRAPY_REDIS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}
SCHEDULERS = [pytest.param({}, id="scrapy"), pytest.param(SCRAPY_REDIS, id="scrapy-redis")]
NAME = "spider:dupefilter"

pytestmark = pytest.mark.usefixtures("r")


def recorded(site: Any, r: redis.Redis, name: str = NAME) -> list[bool]:
    """Return which of the site's pages the filter knows."""
    keys = [fingerprint(Request(site.url + path)) for path in site.paths]
    return BloomFilter.open(name, client=r).exists_many(keys)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_counts_of_one_process(
    scheduler: dict[str, Any], crawl: Callable[..., Any], site: Any
) -> None:
    result = crawl(BLOOMLOCK_RECORD_UNFILTERED=True, **scheduler)
    assert sorted(result.fetched) == site.paths
    checked = PAGES * LINKS_PER_PAGE
    assert result.own("checked") == checked
    assert result.stats["dupefilter/filtered"] == checked - (PAGES - 1)
    assert result.stats["finish_reason"] == "finished"
    assert result.own("errors") == result.own("outages") == result.own("unknown") == 0
    assert result.own("estimated_count") == PAGES
    assert result.own("capacity_used") == pytest.approx(PAGES / 1000)
    assert result.log.count("no more duplicates will be shown") == 1


def test_start_requests_mean_what_scrapy_means(crawl: Callable[..., Any], site: Any) -> None:
    # dont_filter neither asks nor records, so the linked start page is fetched twice.
    assert Counter(crawl().fetched) == {path: 2 if path == "/0" else 1 for path in site.paths}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_two_processes_share_one_filter(
    scheduler: dict[str, Any], start_spider: Callable[..., Any], site: Any
) -> None:
    options = {"BLOOMLOCK_RECORD_UNFILTERED": True, "SCHEDULER_IDLE_BEFORE_CLOSE": 1, **scheduler}
    first, second = start_spider(**options), start_spider(**options)
    fetched = Counter(first.finish().fetched + second.finish().fetched)
    # Each process asks for its start page. (The queue of scrapy-redis is a sorted set: it holds
    # equal requests once, if the second comes before the first is fetched.) Everything else is
    # fetched once in all.
    assert fetched.pop("/0") in ({1, 2} if scheduler else {2})
    assert fetched == dict.fromkeys(set(site.paths) - {"/0"}, 1)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nothing_is_wiped_when_the_first_process_closes(
    scheduler: dict[str, Any], start_spider: Callable[..., Any], site: Any, r: redis.Redis
) -> None:
    options = {**scheduler, "BLOOMLOCK_RECORD_UNFILTERED": True, "SCHEDULER_PERSIST": False}
    first_is_closed = threading.Event()
    site.on_request = lambda count: None if count > 1 else first_is_closed.wait(300)
    second = start_spider(**options)
    wait_until(lambda: site.requested == ["/0"], 120)
    first = start_spider(**options).finish()
    first_is_closed.set()
    assert sorted(first.fetched) == site.paths
    assert all(recorded(site, r))
    # Its links come after the first has closed, and are all known.
    assert second.finish().fetched == ["/0"]
    assert all(recorded(site, r))
    if scheduler:
        assert "SCHEDULER_PERSIST is False" in first.log
        assert "is kept; set BLOOMLOCK_CLEAR_ON_CLOSE" in first.log


def test_flush_on_start_wipes_once(crawl: Callable[..., Any], site: Any, r: redis.Redis) -> None:
    options = {"BLOOMLOCK_RECORD_UNFILTERED": True, **SCRAPY_REDIS, "SCHEDULER_PERSIST": False}
    for _ in range(2):
        result = crawl(**options, SCHEDULER_FLUSH_ON_START=True)
        assert sorted(result.fetched) == site.paths
        assert all(recorded(site, r))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_clear_on_close_leaves_nothing(
    scheduler: dict[str, Any], crawl: Callable[..., Any], r: redis.Redis
) -> None:
    result = crawl(BLOOMLOCK_CLEAR_ON_CLOSE=True, **scheduler)
    assert result.own("estimated_count") == PAGES
    assert r.keys() == []


def test_says_which_requests_a_crash_loses(crawl: Callable[..., Any], tmp_path: Any) -> None:
    """The three sentences; none of them says that a queue protects from a crash."""
    for settings, level, sentence in (
        ({}, "WARNING", "is lost when the crawl stops before it is empty, in order or not."),
        ({"JOBDIR": str(tmp_path)}, "WARNING", "if the process is killed or crashes, the queue"),
        (SCRAPY_REDIS, "INFO", "if a process is killed or crashes, the requests it was fetching"),
    ):
        lines = [line for line in crawl(**settings).log.splitlines() if "outlives this" in line]
        assert len(lines) == 1
        assert f"{level}: " in lines[0]
        assert sentence in lines[0]
        assert lines[0].endswith("What is lost counts as seen until the filter is cleared.")


def test_spiders_share_a_name_without_a_template(crawl: Callable[..., Any]) -> None:
    options = {"BLOOMLOCK_NAME": "all spiders", "BLOOMLOCK_RECORD_UNFILTERED": True}
    assert len(crawl("one", **options).fetched) == PAGES
    assert crawl("two", **options).fetched == ["/0"]


def test_the_projects_fingerprinter_is_used(crawl: Callable[..., Any], r: redis.Redis) -> None:
    result = crawl(
        BLOOMLOCK_RECORD_UNFILTERED=True,
        REQUEST_FINGERPRINTER_CLASS="__main__.OneForAllFingerprinter",
    )
    # It gives every URL the same fingerprint: nothing but the start page is new.
    assert result.fetched == ["/0"]
    assert BloomFilter.open(NAME, client=r).exists(b"the same")


def test_a_fingerprinter_that_fails_does_not_stop_the_crawl(
    crawl: Callable[..., Any], site: Any
) -> None:
    result = crawl(REQUEST_FINGERPRINTER_CLASS="__main__.BrokenFingerprinter")
    assert set(result.fetched) == set(site.paths)
    assert len(result.fetched) == PAGES + 1
    assert result.own("fingerprint_errors") == result.own("checked")
    assert "spider_exceptions/count" not in result.stats
    assert result.log.count("The request fingerprinter failed") == 1


def test_debug_logs_every_duplicate_and_its_referer(crawl: Callable[..., Any], site: Any) -> None:
    result = crawl(DUPEFILTER_DEBUG=True)
    lines = [line for line in result.log.splitlines() if "Filtered duplicate request:" in line]
    assert len(lines) == result.stats["dupefilter/filtered"]
    assert all(f"(referer: {site.url}/" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"BLOOMLOCK_CAPACITY": "many"}, "BLOOMLOCK_CAPACITY is 'many'; allowed is a whole number"),
        ({"BLOOMLOCK_STRATEGY": "hope", "BLOOMLOCK_LAYOUT": "blocked"}, "'hope'"),
        ({"BLOOMLOCK_LAYOUT": "spiral"}, "layout must be 'classic' or 'blocked', not 'spiral'"),
        ({"BLOOMLOCK_OPTIMIZE": "size"}, "optimize must be 'memory', 'balanced', 'speed' or None"),
        ({"BLOOMLOCK_NUM_HASHES": "65"}, "num_hashes must be a whole number from 1 to 64"),
        ({"BLOOMLOCK_WINDOW": 0}, "BLOOMLOCK_WINDOW is 0; allowed is a number above 0."),
        ({"BLOOMLOCK_WINDOW": 60, "BLOOMLOCK_SLICES": 5}, "slices must be one of 6, 14, 30"),
    ],
)
def test_a_bad_setting_stops_the_crawl_before_it_starts(
    settings: dict[str, Any], sentence: str, crawl: Callable[..., Any], site: Any
) -> None:
    result = crawl(**settings)
    # (The exit status of such a crawl is Scrapy's, and has changed between its versions.)
    assert site.requested == []
    assert result.fetched == []
    assert "CRITICAL" in next(line for line in result.log.splitlines() if sentence in line)
    assert sentence in result.log.splitlines()[-1]


def test_a_crawl_with_a_window(crawl, r, site):
    first = crawl(BLOOMLOCK_WINDOW=86_400)
    assert sorted(set(first.fetched)) == site.paths
    assert first.own("cache_hits") > 0
    assert r.hget("bloomlock:{spider:dupefilter}:meta", "window") == b"86400000000/14"
    assert len(crawl(BLOOMLOCK_WINDOW=86_400).fetched) <= 1


@pytest.mark.parametrize("key", ["sixteen bytes or more", "True"])
def test_a_crawl_with_a_key(crawl, r, site, key):
    first = crawl(BLOOMLOCK_KEY=key)
    assert sorted(set(site.requested)) == site.paths
    assert first.own("errors") == 0
    kind = b"random:" if key == "True" else b"secret:"
    assert r.hget("bloomlock:{spider:dupefilter}:meta", "key").startswith(kind)
    assert "sixteen bytes" not in first.log
    again = crawl(BLOOMLOCK_KEY=key)
    assert len(again.fetched) <= 1
    refused = crawl()
    assert "key: stored" in refused.log
    assert refused.fetched == []
