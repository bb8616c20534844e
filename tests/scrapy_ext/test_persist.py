"""BLOOMLOCK_PERSIST: a crawl fetches what is new, and all that leads there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from crawling import ALONE

if TYPE_CHECKING:
    from crawling import Runner, Site

PERSIST = {"BLOOMLOCK_PERSIST": True}


def test_pages_that_gave_an_item_are_fetched_by_one_crawl(crawls: Runner, site: Site) -> None:
    """0 is the start page, 1 is a list, 7 is new in the second crawl, and 5 fails in the first."""
    links = {0: [1, 2, 3], 1: [4, 5, 6]}
    site.links = lambda page: links.get(page, [])
    items = ["/0", "/2", "/3", "/4", "/5", "/7"]
    site.answer = lambda path: [302, "/8"] if path == "/6" else [200]
    first = crawls.run(arguments={"items": [*items, "/8"], "raises": ["/5"]}, **PERSIST)
    assert first.pages == Counter(["/0", "/1", "/2", "/3", "/4", "/5", "/8"])
    links[1].append(7)
    second = crawls.run(arguments={"items": items}, **PERSIST)
    # The start page, the list, the one that failed, and the new one.
    assert second.pages == Counter(["/0", "/1", "/5", "/7"])
    # The one that failed is put back first, and may have given its item before the list is read.
    assert second.own("delivered_before") in {4, 5}
    assert second.reason == "finished"
    how = {"/2": {"meta": {"bloomlock_filter": False}}, "/3": {"dont_filter": True}}
    third = crawls.run(arguments={"items": items, "how": how}, **PERSIST)
    assert third.pages == Counter(["/0", "/1", "/2", "/3"])
    without = crawls.run(arguments={"items": items})
    assert len(without.fetched) == 8


def test_what_failed_and_is_put_back_is_fetched_once(crawls: Runner, site: Site) -> None:
    """Also the start page, which is asked for by the start as well."""
    site.links = lambda page: [1] if page == 0 else []
    assert crawls.run(arguments={"raises": ["/0"]}, **PERSIST).own("failed") == 1
    assert crawls.run(**PERSIST).pages == Counter(["/0", "/1"])


def test_it_needs_the_scheduler_which_needs_the_middlewares(crawls: Runner) -> None:
    line = "BLOOMLOCK_PERSIST has an effect with scrapy_ext.Scheduler only"
    assert crawls.run(ALONE, **PERSIST).lines(line)
    refused = crawls.run({"SCHEDULER": "scrapy_ext.Scheduler"})
    assert refused.code == 1
    assert refused.lines("CRITICAL: scrapy_ext.Scheduler needs scrapy_ext.BatchingMiddleware in")
