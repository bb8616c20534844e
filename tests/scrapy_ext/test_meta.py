"""What is filtered and what is recorded: `meta`, `dont_filter`, redirects, retries, errbacks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, FILTER, OURS, PLAIN, RECORDS

if TYPE_CHECKING:
    from crawling import Runner, Site

WAYS = [
    pytest.param(FILTER, id="one by one"),
    pytest.param(ADDON, id="batches"),
    pytest.param(OURS, id="scheduler"),
]
ALWAYS = {"bloomlock_filter": False}
UNRECORDED = {"bloomlock_record": False}


@pytest.mark.parametrize("set_up", WAYS)
def test_meta_says_what_is_filtered_and_recorded(
    set_up: dict[str, Any], crawls: Runner, site: Site
) -> None:
    # Page 1 hands its `meta` on to 3, which is seen then.
    links = {0: [1, 1, 2, 2, 3, 3, 4, 4, 5, 5], 1: [3]}
    site.links = lambda page: links.get(page, [])
    logs: list[list[str]] = []

    def fetched(**meta: Any) -> Counter[str]:
        how = {f"/{name[1:]}": {"meta": value} for name, value in meta.items()}
        result = crawls.run(set_up, arguments={"how": how, "hands_on": True})
        assert "log_count/ERROR" not in result.stats, result.log
        logs.append(result.lines("The meta key"))
        assert result.pages["/0"] == 1
        return result.pages - Counter(["/0"])

    bad = {"bloomlock_filter": "no", "bloomlock_record": 0}
    meta = {"_1": ALWAYS, "_2": UNRECORDED, "_4": {**ALWAYS, **UNRECORDED}}
    each_time = {"/1": 2, "/2": 2, "/4": 2}
    assert fetched(**meta, _5=bad) == {**each_time, "/3": 1, "/5": 1}
    assert fetched(**meta) == each_time
    # What was not recorded is new to others, and what was is seen by those that do not record.
    assert fetched(_1=UNRECORDED) == {"/2": 1, "/4": 1}
    assert [len(lines) for lines in logs] == [2, 0, 0]
    for key, value in (("bloomlock_filter", "'no'"), ("bloomlock_record", "0")):
        (line,) = [line for line in logs[0] if f"meta key {key} of <GET " in line]
        assert f"is {value}; allowed are True and False." in line


@pytest.mark.parametrize("set_up", WAYS)
def test_what_is_not_filtered_is_recorded_where_meta_or_the_setting_says_so(
    set_up: dict[str, Any], crawls: Runner, site: Site
) -> None:
    site.links = lambda page: [] if page else [1, 2, 3]
    record = {"dont_filter": True, "meta": {"bloomlock_record": True}}
    how = {"/1": {**record, "beside": True}, "/2": record, "/3": {"dont_filter": True}}
    assert crawls.run(set_up, arguments={"how": how}).pages == Counter(["/0", *how])
    # A spider that filters finds them there, but not the one of which nobody says so.
    assert crawls.run(set_up).fetched == ["/0", "/3"]
    first = crawls.run(set_up | RECORDS, name="records", arguments={"how": how})
    assert first.pages == Counter(["/0", *how])
    assert crawls.run(set_up, name="records").fetched == ["/0"]


@pytest.mark.parametrize("set_up", WAYS)
def test_retries_and_redirects_that_lead_back_are_no_duplicates(
    set_up: dict[str, Any], crawls: Runner, site: Site
) -> None:
    # Pages 1 and 5 hand their `meta`, the redirect and the retry in it, on to a link to themselves.
    site.links = lambda page: (
        [1, 2, 4, 3, 5] if not page else [page] if page in {1, 5} and asked[f"/{page}"] < 9 else []
    )
    asked: Counter[str] = Counter()
    answers = {"/1": [302, "/1"], "/2": [303, "/9"], "/5": [503]}

    def answer(path: str) -> list[Any]:
        asked[path] += 1
        if path in {"/3", "/9"}:
            return [302, "/4" if path == "/3" else "/2#top"]
        return answers.get(path, [200]) if asked[path] == 1 else [200]

    site.answer = answer
    first = crawls.run(set_up, arguments={"hands_on": True}, RETRY_PRIORITY_ADJUST=5)
    assert first.pages == Counter(["/0", "/1", "/2", "/4", "/5"])
    # What leads to another seen page is filtered.
    assert asked == {"/0": 1, "/1": 2, "/2": 2, "/9": 1, "/3": 1, "/4": 1, "/5": 2}
    # A redirect has the keys of its request.
    again = crawls.run(set_up, arguments={"how": {"/3": {"meta": ALWAYS}}, "hands_on": True})
    assert again.pages == Counter(["/0", "/4"])


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("set_up", [PLAIN, ADDON, OURS], ids=["plain", "add-on", "scheduler"])
def test_what_an_errback_forces_is_fetched_as_with_scrapy(
    record: bool, set_up: dict[str, Any], site: Site, crawls: Runner
) -> None:
    site.links = lambda page: {2: [3], 3: [2]}.get(page, [])
    refuses = {"DOWNLOADER_MIDDLEWARES": {"__main__.RefusingMiddleware": 300}}
    done = crawls.run(set_up, spider="ForcingSpider", BLOOMLOCK_RECORD_UNFILTERED=record, **refuses)
    # What was forced is fetched for a link as well, unless it is recorded.
    is_recorded = record and set_up is not PLAIN
    assert done.fetched == ["/2", "/3"] + ([] if is_recorded else ["/2"])
    assert done.reason == "finished"


def test_what_a_start_request_is_redirected_to_is_recorded_by_the_scheduler(
    crawls: Runner, site: Site
) -> None:
    site.answer = lambda path: [302, "/1"] if path == "/0" else [200]
    site.links = lambda _: [0, 1, 2]
    assert crawls.run(OURS).pages == Counter(["/1", "/2"])


def test_what_has_no_form_on_the_server_is_fetched(crawls: Runner, site: Site) -> None:
    how = {path: {"partial": True} for path in site.paths[1::2]}
    done = crawls.run(OURS, arguments={"how": how})
    assert done.pages == Counter(site.paths)
    assert done.stats["scheduler/unserializable"] > 0
    assert len(done.lines("Unable to serialize")) == 1
    # The last request leads to none, so no round trip follows that would count its duplicates.
    site.links = {0: [1], 1: [1, 1]}.__getitem__
    result = crawls.run(OURS, name="last", arguments={"how": how}, BLOOMLOCK_MAX_STALENESS=3600)
    assert result.fetched == ["/0", "/1"]
    assert result.own("checked") == 4
    assert result.own("cache_hits") == result.stats["dupefilter/filtered"] == 2
