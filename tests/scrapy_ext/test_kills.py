"""kill -9 at a chosen event loses nothing with our scheduler, nor with BLOOMLOCK_MARK."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, OURS, RECORDS, end_leases, in_flight

from bloomlock import BloomFilter

if TYPE_CHECKING:
    import redis
    from crawling import Runner, Site

PAGES = 15
MARKED = {**ADDON, **RECORDS, "BLOOMLOCK_MARK": "processed"}
PIPELINE = {"ITEM_PIPELINES": {"__main__.DyingPipeline": 1}, "BLOOMLOCK_LEASE": 600}
NAME = "spider:dupefilter"


@pytest.fixture
def tree(site: Site) -> Counter[str]:
    """Pages to each of which one other leads, so one that is lost takes all below it along."""
    site.links = lambda page: [
        *(child for child in (2 * page + 1, 2 * page + 2) if child < PAGES),
        *(0, page),
    ]
    return Counter(f"/{page}" for page in range(PAGES))


@pytest.mark.parametrize(
    ("event", "page"),
    [
        *((event, "/1") for event in ("asked", "callback", "half", "item", "done")),
        # The start page is pushed in a way of its own.
        ("asked", "/0"),
        ("half", "/0"),
    ],
)
def test_with_the_scheduler_nothing_is_lost(
    event: str, page: str, crawls: Runner, site: Site, tree: Counter[str], r: redis.Redis
) -> None:
    options = {"spider": "DyingSpider", "CONCURRENT_REQUESTS": 1, **PIPELINE}
    killed = crawls.run(OURS, arguments={"dies": [event, page]}, **options)
    assert killed.code == -signal.SIGKILL, killed.log
    begun = in_flight(r)
    end_leases(r)
    last = crawls.run(OURS, **options)
    assert last.reason == "finished"
    assert set(crawls.noted("done")) == set(crawls.noted("item")) == set(tree)
    again = Counter(site.requested) - tree
    assert again.total() <= begun
    assert event == "asked" or again[page] == (event != "done")
    assert r.keys("spider:requests*") == []


@pytest.mark.parametrize("mark", ["processed", "downloaded"])
def test_with_a_mark_the_next_start_takes_over(
    mark: str, crawls: Runner, tree: Counter[str], r: redis.Redis
) -> None:
    set_up = {**MARKED, **PIPELINE, "BLOOMLOCK_MARK": mark, "CONCURRENT_REQUESTS": 1}
    for event in (["half", "/1"], ["callback", "/4"]):
        killed = crawls.run(set_up, spider="DyingSpider", arguments={"dies": event})
        assert killed.code == -signal.SIGKILL, killed.log
        end_leases(r)
    last = crawls.run(set_up, spider="DyingSpider")
    assert last.own("claims/taken_over") > 0
    assert set(crawls.noted("done")) == set(crawls.noted("item")) == set(tree)
    with BloomFilter.open(NAME, client=r) as shared:
        counts = shared.count_claims()
    assert (counts.open, last.reason) == (0, "finished")
    assert crawls.run(set_up, spider="DyingSpider").fetched == []


def test_with_a_mark_what_failed_is_tried_again_by_the_next_start(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    def failed() -> list[str]:
        with BloomFilter.open(NAME, client=r) as shared:
            return sorted(one.error for one in shared.failed())

    site.answer = lambda path: {"/1": [503], "/3": [404]}.get(path, [200])
    arguments: dict[str, Any] = {"items": ["/2", "/4", "/5"], "raises": ["/5", "/6"]}
    picky = {"ITEM_PIPELINES": {"__main__.PickyPipeline": 1}}
    first = crawls.run(MARKED, arguments=arguments, **picky)
    assert Counter(site.requested)["/1"] == 3, "a retry keeps the claim"
    assert first.reason == "finished"
    errors = [f"ZeroDivisionError: {page}" for page in ("", "/5", "/6")]
    assert failed() == [*errors, "the status was 503"]
    site.requested.clear()
    site.answer = None
    second = crawls.run(MARKED)
    assert Counter(site.requested) == Counter(["/0", "/1", "/2", "/5", "/6"])
    assert second.own("claims/taken_over") == 4
    assert failed() == []
