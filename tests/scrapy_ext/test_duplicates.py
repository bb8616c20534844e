"""Duplicates that the engine does not get, where nothing would notice; and those that it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

MARKED = {"BLOOMLOCK_MARK": "processed", "ADDONS": {"scrapy_ext.BloomlockAddon": 500}}
COUNTED = (
    "dupefilter/filtered",
    "offsite/filtered",
    "scheduler/enqueued",
    "response_received_count",
    "item_scraped_count",
    "finish_reason",
)

pytestmark = pytest.mark.usefixtures("r")


@pytest.mark.parametrize("cached", [True, False], ids=["near-cache", "none"])
@pytest.mark.parametrize("mark", [{}, MARKED], ids=["scheduled", "processed"])
def test_a_crawl_in_which_nothing_listens_does_the_same(
    mark: dict[str, Any], cached: bool, crawl: Callable[..., Any]
) -> None:
    theirs = crawl(
        spider="UnheardSpider",
        DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter",
        SPIDER_MIDDLEWARES={},
    )
    options = {} if cached else {"BLOOMLOCK_NEAR_CACHE": 0}
    ours = crawl(spider="UnheardSpider", **mark, **options)
    assert theirs.stats["dupefilter/filtered"] > 20
    assert {name: ours.stats.get(name) for name in COUNTED} == {
        name: theirs.stats.get(name) for name in COUNTED
    }
    assert sorted(ours.fetched) == sorted(theirs.fetched)
    assert sorted(ours.events) == sorted(theirs.events)
    assert ours.log.count("no more duplicates will be shown") == 1
    # What has `dont_filter`, the start page is no part of it, and what is offsite is not checked.
    assert ours.own("checked") >= ours.stats["dupefilter/filtered"]
    assert "heard" not in ours.stats


@pytest.mark.parametrize(
    ("spider", "settings", "hears_new"),
    [
        pytest.param("HearingSpider", {}, False, id="signal"),
        pytest.param("LinkSpider", {"SCHEDULER": "__main__.HearingScheduler"}, True, id="schedule"),
        pytest.param(
            "LinkSpider", {"DUPEFILTER_CLASS": "__main__.HearingLog"}, False, id="filter's log"
        ),
        pytest.param(
            "LinkSpider", {"DUPEFILTER_CLASS": "__main__.HearingFilter"}, True, id="filter"
        ),
        pytest.param(
            "LinkSpider",
            {
                "DOWNLOADER_MIDDLEWARES": {
                    "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None,
                    "__main__.HearingOffsite": 50,
                }
            },
            True,
            id="offsite",
        ),
    ],
)
def test_what_may_notice_a_duplicate_gets_each_of_them(
    spider: str, settings: dict[str, Any], hears_new: bool, crawl: Callable[..., Any]
) -> None:
    stats = crawl(spider=spider, **settings).stats
    assert stats["dupefilter/filtered"] > 100
    expected = stats["dupefilter/filtered"] + hears_new * stats["scheduler/enqueued"]
    assert stats["heard"] == expected


@pytest.mark.parametrize("mark", [{}, MARKED], ids=["scheduled", "processed"])
def test_what_is_not_to_be_filtered_is_fetched_though_it_is_known(
    mark: dict[str, Any], crawl: Callable[..., Any], site: Any
) -> None:
    site.links = {0: [1], 1: [2], 2: [3], 3: [2]}.__getitem__
    meta = {"/2": {"bloomlock_filter": False}}
    options = {"BLOOMLOCK_MAX_STALENESS": 3600, **mark}
    result = crawl(spider="ControlSpider", arguments={"meta": meta}, **options)
    assert result.fetched == ["/0", "/1", "/2", "/3", "/2"]


def test_a_sample_has_what_the_engine_does_not_get(crawl: Callable[..., Any], site: Any) -> None:
    result = crawl(
        BLOOMLOCK_AUDIT_SAMPLE=3, DUPEFILTER_DEBUG=True, BLOOMLOCK_RECORD_UNFILTERED=True
    )
    assert result.log.count("Filtered duplicate request: ") == result.stats["dupefilter/filtered"]
    assert sum(f"'{site.url}/" in line for line in result.log.splitlines()) >= 3
