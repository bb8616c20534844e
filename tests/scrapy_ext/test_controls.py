"""What `meta` says of the filter, and redirects that lead back: what real crawls fetch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scrapy_ext.conftest import Crawl, Site

# (The default queue of scrapy-redis holds equal requests once.)
OURS = {
    "SCHEDULER": "scrapy_ext.Scheduler",
    "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
}
OUTCOMES = {"scrapy_ext.outcomes.OutcomeMiddleware": 1}
PROCESSED = {
    "SPIDER_MIDDLEWARES": OUTCOMES,
    "DOWNLOADER_MIDDLEWARES": OUTCOMES,
    "BLOOMLOCK_MARK": "processed",
}
WAYS = [
    pytest.param({}, id="batches"),
    pytest.param(PROCESSED, id="claims, one by one"),
    pytest.param(OURS, id="scheduler"),
]
ALWAYS = {"bloomlock_filter": False}
UNRECORDED = {"bloomlock_record": False}

pytestmark = pytest.mark.usefixtures("r")


@pytest.mark.parametrize("settings", WAYS)
def test_meta_says_what_is_filtered_and_recorded(
    settings: dict[str, Any], crawl: Callable[..., Crawl], site: Site
) -> None:
    # Page 1 hands its `meta` on to 3, which is seen then.
    links = {0: [1, 1, 2, 2, 3, 3, 4, 4, 5, 5], 1: [3]}
    site.links = lambda page: links.get(page, [])

    def fetched(**meta: Any) -> Counter[str]:
        arguments = {"meta": {f"/{name[1:]}": value for name, value in meta.items()}}
        result = crawl(spider="ControlSpider", arguments=arguments, **settings)
        assert "spider_exceptions/count" not in result.stats, result.log
        assert "log_count/ERROR" not in result.stats, result.log
        logs.append(result.log)
        counts = Counter(result.fetched)
        assert counts.pop("/0") == 1
        return counts

    logs: list[str] = []
    bad = {"bloomlock_filter": "no", "bloomlock_record": 0}
    meta = {"_1": ALWAYS, "_2": UNRECORDED, "_4": {**ALWAYS, **UNRECORDED}}
    each_time = {"/1": 2, "/2": 2, "/4": 2}
    assert fetched(**meta, _5=bad) == {**each_time, "/3": 1, "/5": 1}
    assert fetched(**meta) == each_time
    # What was not recorded is new to others, and what was is seen by those that do not record.
    assert fetched(_1=UNRECORDED) == {"/2": 1, "/4": 1}
    assert fetched(_2=UNRECORDED) == {}
    for key, value in (("bloomlock_filter", "'no'"), ("bloomlock_record", "0")):
        lines = [line for line in logs[0].splitlines() if f"meta key {key} of <GET " in line]
        assert len(lines) == 1
        assert f"is {value}; allowed are True and False." in lines[0]
    assert "The meta key" not in "".join(logs[1:])


@pytest.mark.parametrize("settings", WAYS)
def test_what_is_not_filtered_is_recorded_where_meta_says_so(
    settings: dict[str, Any], crawl: Callable[..., Crawl], site: Site
) -> None:
    site.links = lambda page: [] if page else [1, 2, 3]
    pages = ["/1", "/2", "/3"]
    for beside in (pages, [], ["/1"]):
        arguments = {"beside": beside}
        result = crawl(
            spider="UnfilteredSpider", arguments=arguments, BLOOMLOCK_NAME=f"{beside}", **settings
        )
        assert sorted(result.fetched) == ["/0", *pages]
        # A spider that filters finds them there.
        result = crawl(BLOOMLOCK_NAME=f"{beside}", **settings)
        assert result.fetched == ["/0"]


@pytest.mark.parametrize("settings", WAYS)
def test_a_redirect_that_leads_back_is_no_duplicate(
    settings: dict[str, Any], crawl: Callable[..., Crawl], site: Site
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
    first = crawl(spider="ControlSpider", **settings)
    assert Counter(first.fetched) == dict.fromkeys(["/0", "/1", "/2", "/4", "/5"], 1)
    # What leads to another seen page is filtered.
    assert asked == {"/0": 1, "/1": 2, "/2": 2, "/9": 1, "/3": 1, "/4": 1, "/5": 2}
    # A redirect has the keys of its request.
    meta = {"/3": ALWAYS}
    again = crawl(spider="ControlSpider", arguments={"meta": meta}, **settings)
    assert sorted(again.fetched) == ["/0", "/4"]
