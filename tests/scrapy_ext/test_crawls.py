"""A crawl with our filter or our scheduler does what it does with Scrapy's own filter.

The same pages, items, order and stats; what may notice a duplicate in the engine gets each.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, FILTER, OURS, PLAIN, RECORDS, SCRAPY_REDIS, SET_UPS, Forks, Runner, Site
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter

if TYPE_CHECKING:
    import redis
    from crawling import Result

NAME = "spider:dupefilter"
SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
COUNTED = (
    "dupefilter/filtered",
    "dropped",
    "offsite/filtered",
    "scheduler/enqueued",
    "response_received_count",
    "item_scraped_count",
    "finish_reason",
)
ONE_BY_ONE = {"CONCURRENT_REQUESTS": 1, "ITEM_PIPELINES": {"__main__.NotingPipeline": 1}}


@pytest.fixture(scope="module")
def plain(forks: Forks, all_servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The crawl of the mixed spider with Scrapy's own filter."""
    with Site().served() as site:
        url, notes = (
            all_servers.url("valkey", bloom=False),
            tmp_path_factory.mktemp("plain") / "notes",
        )
        runner = Runner(forks, url, site, notes)
        found = runner.run(PLAIN, spider="MixedSpider", **ONE_BY_ONE)
        assert len(found.fetched) == len(site.requested) > 20
        assert found.stats["dupefilter/filtered"] == found.stats["dropped"] > 100
    return found


def by_page(events: list[list[str]]) -> dict[str, list[str]]:
    """Return what each page led to, in order."""
    pages: dict[str, list[str]] = {}
    for page, event in events:
        pages.setdefault(page, []).append(event)
    # Items of start() go to the pipelines beside its requests.
    pages["/start"].sort(key=lambda event: event.startswith("item"))
    return pages


def counted(result: Result) -> dict[str, Any]:
    return {name: result.stats.get(name) for name in COUNTED}


@pytest.mark.parametrize(
    "set_up",
    [
        pytest.param(FILTER, id="filter"),
        pytest.param({**ADDON, "BLOOMLOCK_NEAR_CACHE": 0}, id="add-on"),
        pytest.param({**ADDON, **SELECT}, id="select reactor"),
        pytest.param({**ADDON, "BLOOMLOCK_WINDOW": 86_400}, id="window"),
        pytest.param({**ADDON, "BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 4}, id="growth"),
    ],
)
def test_the_same_pages_items_and_stats_in_the_same_order(
    set_up: dict[str, Any], plain: Result, crawls: Runner, site: Site, r: redis.Redis
) -> None:
    ours = crawls.run(set_up, spider="MixedSpider", **ONE_BY_ONE)
    assert counted(ours) == counted(plain)
    assert ours.pages == plain.pages
    # (Where the reactor is another one, or waits at each request, items come sooner or later.)
    if set_up is not FILTER and "TWISTED_REACTOR" not in set_up:
        assert by_page(ours.events) == by_page(plain.events)
    assert len(ours.lines("no more duplicates will be shown")) == 1
    assert "spider_exceptions/count" not in ours.stats
    assert ours.own("errors") == ours.own("outages") == ours.own("unknown") == 0
    # What is offsite is not recorded.
    paths = {path for _, path in ours.events} - {"item", "item begins"}
    with BloomFilter.open(NAME, client=r) as shared:
        urls = {path: f"{site.url}{path}" for path in paths}
        urls["/elsewhere"] = "http://localhost:1/elsewhere"
        seen = {path for path, url in urls.items() if shared.exists(fingerprint(Request(url)))}
    assert seen == paths - {"/elsewhere"}


@pytest.mark.parametrize("cached", [True, False], ids=["near-cache", "none"])
def test_the_same_where_nobody_hears_of_duplicates(
    cached: bool, plain: Result, crawls: Runner
) -> None:
    near = {} if cached else {"BLOOMLOCK_NEAR_CACHE": 0}
    ours = crawls.run(spider="MixedSpider", arguments={"hears": False}, **ONE_BY_ONE, **near)
    assert counted(ours) == {**counted(plain), "dropped": None}
    assert ours.pages == plain.pages
    items = [event for event in plain.events if event[1].startswith("item")]
    assert sorted(ours.events) == sorted(items)
    # What has `dont_filter` is no part of it, and what is offsite is not checked.
    assert ours.own("checked") >= ours.stats["dupefilter/filtered"]


@pytest.mark.parametrize("name", SET_UPS)
def test_each_page_is_fetched_once_and_none_by_the_next_crawl(
    name: str, crawls: Runner, site: Site
) -> None:
    set_up = SET_UPS[name] | RECORDS
    first = crawls.run(set_up)
    assert first.code == 0
    assert first.pages == Counter(site.paths)
    assert first.own("checked") == 2 * 8 * 8 + (name == "scheduler")
    assert first.stats["dupefilter/filtered"] == 2 * 8 * 8 - 7
    assert name == "scrapy-redis" or first.stats["scheduler/dequeued"] == 8
    assert first.own("estimated_count") == 8
    assert first.reason == "finished"
    # The start page has `dont_filter`.
    assert crawls.run(set_up, **(SELECT if name == "scheduler" else {})).fetched == ["/0"]


def test_without_a_template_spiders_share_a_filter(crawls: Runner, site: Site) -> None:
    set_up = {**ADDON, **RECORDS, "BLOOMLOCK_NAME": "all spiders"}
    assert crawls.run(set_up, name="one").pages == Counter(site.paths)
    assert crawls.run(set_up, name="two").fetched == ["/0"]
    assert crawls.run(RECORDS | ADDON, name="three").pages == Counter(site.paths)


def test_clear_on_close_and_flush_on_start(crawls: Runner, site: Site, r: redis.Redis) -> None:
    assert crawls.run(RECORDS | ADDON, BLOOMLOCK_CLEAR_ON_CLOSE=True).own("estimated_count") == 8
    assert r.keys() == []
    flushed = {**SCRAPY_REDIS, **RECORDS, "SCHEDULER_PERSIST": False}
    for _ in range(2):
        result = crawls.run(flushed, SCHEDULER_FLUSH_ON_START=True)
        assert result.pages == Counter(site.paths)
    with BloomFilter.open(NAME, client=r) as shared:
        assert shared.count() == 8
    assert result.lines("is kept; set BLOOMLOCK_CLEAR_ON_CLOSE")


def test_the_log_says_what_a_crash_loses(crawls: Runner, tmp_path: Any) -> None:
    for set_up, level, sentence in (
        (FILTER, "WARNING", "is lost when the crawl stops before it is empty, in order or not."),
        (FILTER | {"JOBDIR": str(tmp_path)}, "WARNING", "if the process is killed or crashes, the"),
        (SCRAPY_REDIS, "INFO", "if a process is killed or crashes, the requests it was fetching"),
    ):
        (line,) = crawls.run(set_up).lines("outlives this")
        assert f"{level}: " in line
        assert sentence in line


@pytest.mark.parametrize("name", ["filter", "scheduler"])
def test_a_fingerprinter_of_the_project(
    name: str, crawls: Runner, site: Site, r: redis.Redis
) -> None:
    set_up = SET_UPS[name] | RECORDS
    result = crawls.run(set_up, REQUEST_FINGERPRINTER_CLASS="__main__.OneForAllFingerprinter")
    assert result.fetched == ["/0"]
    with BloomFilter.open(NAME, client=r) as shared:
        assert shared.exists(b"the same")
    # One that fails does not stop the crawl.
    broken = "__main__.BrokenFingerprinter"
    result = crawls.run(set_up, name="broken", REQUEST_FINGERPRINTER_CLASS=broken)
    assert set(result.fetched) == set(site.paths)
    assert result.own("fingerprint_errors") >= result.own("checked") > 0
    assert "spider_exceptions/count" not in result.stats
    assert len(result.lines("The request fingerprinter failed")) == 1


@pytest.mark.parametrize("name", ["add-on", "scheduler"])
def test_duplicates_are_logged_and_sampled(name: str, crawls: Runner, site: Site) -> None:
    set_up = SET_UPS[name] | RECORDS
    result = crawls.run(set_up, DUPEFILTER_DEBUG=True, BLOOMLOCK_AUDIT_SAMPLE=1000)
    lines = result.lines("Filtered duplicate request:")
    assert len(lines) == result.stats["dupefilter/filtered"] == 2 * 8 * 8 - 7
    assert all(f"(referer: {site.url}/" in line for line in lines)
    sample = Counter(result.own("refused_sample"))
    links = Counter(f"{site.url}{path}" for path in site.paths)
    new = Counter({url: 1 for url in links if not url.endswith("/0")})
    assert sample == Counter(dict.fromkeys(links, 16)) - new


def test_a_page_that_another_client_forgets_is_fetched_again(
    crawls: Runner, site: Site, valkey: str
) -> None:
    forgotten: list[bool] = []
    for number, set_up in enumerate((FILTER, ADDON, OURS, OURS | {"BLOOMLOCK_WINDOW": 86_400})):
        site.requested.clear()
        site.links = lambda page: [1, min(page + 1, 7)]

        def forget(count: int, name: str = f"{number}") -> None:
            if count == 5:
                page = fingerprint(Request(f"{site.url}/1"))
                with BloomFilter.open(f"{name}:dupefilter", client=valkey) as shared:
                    forgotten.append(shared.discard(page))

        site.on_request = forget
        # The answers about other pages say that items are forgotten.
        result = crawls.run(set_up, name=f"{number}", BLOOMLOCK_MAX_STALENESS=3600)
        assert forgotten.pop()
        assert result.pages == Counter([*site.paths, "/1"]), set_up
