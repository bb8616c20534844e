"""A request is recorded when it is done: what a crawl fetches that fails, stops or is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from claim_tools import let_expire
from scrapy import Request
from scrapy.utils.request import fingerprint
from servers import wait_until

from bloomlock import BloomFilter
from scrapy_ext.claims import SETTLE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "spider:dupefilter"
PAGES = 8
MIDDLEWARE = {"scrapy_ext.outcomes.OutcomeMiddleware": 1}
PROCESSED = {
    "SPIDER_MIDDLEWARES": {"scrapy_ext.middleware.BatchingMiddleware": 10, **MIDDLEWARE},
    "DOWNLOADER_MIDDLEWARES": MIDDLEWARE,
    "BLOOMLOCK_MARK": "processed",
    "BLOOMLOCK_RECORD_UNFILTERED": True,
    "RETRY_TIMES": 1,
}
DOWNLOADED = {**PROCESSED, "BLOOMLOCK_MARK": "downloaded"}
WINDOW = {"BLOOMLOCK_WINDOW": 86_400}
GROWS = {"BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 4}


def claims_of(valkey: str) -> Any:
    with BloomFilter.open(NAME, client=valkey) as shared:
        return shared.count_claims()


def errors_of(valkey: str, spider: str = "spider") -> list[str]:
    with BloomFilter.open(f"{spider}:dupefilter", client=valkey) as shared:
        return sorted(failed.error for failed in shared.failed())


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED, PROCESSED | WINDOW, PROCESSED | GROWS])
def test_each_page_is_fetched_once_and_recorded(
    settings: dict[str, Any], valkey: str, crawl: Callable[..., Any]
) -> None:
    result = crawl(**settings)
    assert result.process.returncode == 0, result.log
    assert Counter(result.fetched) == {f"/{page}": 1 for page in range(PAGES)}
    assert "log_count/ERROR" not in result.stats, result.log
    counts = claims_of(valkey)
    assert (counts.open, counts.claimed, counts.committed) == (0, PAGES, PAGES)
    assert crawl(**settings).fetched == ["/0"]


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED, PROCESSED | WINDOW, PROCESSED | GROWS])
def test_a_page_that_is_forgotten_is_fetched_again(
    settings: dict[str, Any], valkey: str, site: Any, crawl: Callable[..., Any]
) -> None:
    site.links = lambda page: [1, min(page + 1, PAGES - 1)]
    page = fingerprint(Request(f"{site.url}/1"))

    def forget(number: int) -> None:
        if number == 5:
            with BloomFilter.open(NAME, client=valkey) as shared:
                # It is there when what became of it was sent.
                wait_until(lambda: shared.discard(page))

    site.on_request = forget
    result = crawl(**settings, BLOOMLOCK_MAX_STALENESS=3600)
    assert Counter(result.fetched) == Counter([*(f"/{page}" for page in range(PAGES)), "/1"])
    assert claims_of(valkey).open == 0
    site.on_request = None
    assert crawl(**settings).fetched == ["/0"]


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("strategy", ["pipeline", "lock", "native"])
def test_a_strategy_without_claims_is_refused_at_the_start(
    strategy: str, crawl: Callable[..., Any]
) -> None:
    result = crawl(**PROCESSED, BLOOMLOCK_STRATEGY=strategy)
    assert result.process.returncode == 1, result.log
    assert (
        "BLOOMLOCK_MARK is 'processed', with which BLOOMLOCK_STRATEGY must be one of 'atomic', "
        f"'lua', 'transaction', not {strategy!r}"
    ) in result.log
    assert result.fetched == []


def test_what_failed_is_tried_again_by_the_next_start(
    r: Any, valkey: str, crawl: Callable[..., Any], site: Any
) -> None:
    del r
    answers = {
        "/1": [[503]],
        "/2": [[503], [200]],
        "/3": [[404]],
        "/4": [[302, "/40"]],
        "/40": [[503]],
        "/5": [[302, "/5"], [200]],
        "/6": [[302, "/7"]],
    }

    def answer(path: str) -> list[Any]:
        left = answers.get(path, [[200]])
        return left.pop(0) if left[1:] else left[0]

    site.answer = answer
    arguments = {"raises": ["/7"]}
    first = crawl(arguments=arguments, **PROCESSED)
    counts = Counter(site.requested)
    assert counts["/1"] == counts["/2"] == counts["/40"] == 2, "a retry keeps the claim"
    assert counts["/5"] == 2, "a redirect to itself is no duplicate"
    assert counts["/3"] == counts["/6"] == counts["/7"] == 1
    assert first.stats["finish_reason"] == "finished"
    assert errors_of(valkey) == ["ZeroDivisionError: /7"] + 3 * ["the status was 503"]
    site.requested.clear()
    site.answer = None
    second = crawl(**PROCESSED)
    assert sorted(site.requested) == ["/0", "/1", "/4", "/40", "/7"]
    assert second.own("claims/taken_over") == 4
    assert errors_of(valkey) == []
    assert claims_of(valkey).open == 0
    site.requested.clear()
    crawl(**PROCESSED)
    assert site.requested == ["/0"]


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED])
def test_items_and_errors_of_callbacks(
    settings: dict[str, Any], valkey: str, crawl: Callable[..., Any]
) -> None:
    arguments = {"items": ["/1", "/2", "/3", "/4"], "raises": ["/4", "/5"]}
    result = crawl(arguments=arguments, ITEM_PIPELINES={"__main__.PickyPipeline": 1}, **settings)
    assert len(result.fetched) == PAGES
    failed = ["ZeroDivisionError: ", "ZeroDivisionError: /4", "ZeroDivisionError: /5"]
    assert errors_of(valkey) == (failed if settings is PROCESSED else [])


@pytest.mark.usefixtures("r")
def test_what_waits_at_the_end_is_handed_over(
    valkey: str, crawl: Callable[..., Any], site: Any
) -> None:
    site.links = lambda _: range(40)
    fetched: list[str] = []
    for _ in range(2):
        result = crawl(CLOSESPIDER_PAGECOUNT=10, CONCURRENT_REQUESTS=2, **PROCESSED)
        assert result.stats["finish_reason"] == "closespider_pagecount"
        fetched += result.fetched
    assert claims_of(valkey).open > 0
    fetched += crawl(**PROCESSED).fetched
    # Each start asks for the first page.
    pages = Counter(fetched) - Counter({"/0": fetched.count("/0")})
    assert pages == {f"/{page}": 1 for page in range(1, 40)}
    assert claims_of(valkey).open == 0


@pytest.mark.parametrize("more", [{}, WINDOW], ids=["", "window"])
def test_nothing_is_lost_when_processes_are_killed(
    more: dict[str, Any],
    r: Any,
    valkey: str,
    start_spider: Callable[..., Any],
    site: Any,
    seed: int,
) -> None:
    moments = random.Random(seed)
    pages, concurrent = 48, 4
    # A tree: a page that is lost takes all below it along.
    site.links = lambda page: [2 * page + 1, 2 * page + 2] if 2 * page + 2 < pages else []
    kills = 0
    while True:
        left = moments.randint(1, 25)
        before = len(site.requested)
        settings = (PROCESSED, DOWNLOADED)[kills % 2]
        result = start_spider(CONCURRENT_REQUESTS=concurrent, **settings, **more)
        pid = result.process.pid

        def kill(count: int, moment: int = before + left, pid: int = pid) -> None:
            if count == moment:
                os.kill(pid, signal.SIGKILL)
            # So some outcomes are sent before: a crawl that is killed sooner makes no headway.
            time.sleep(4 * SETTLE_SECONDS / 25)

        site.on_request = kill
        result.finish()
        if result.process.returncode == 0:
            break
        assert result.process.returncode == -signal.SIGKILL
        kills += 1
        let_expire(r)  # as if their time had passed
    fetched = Counter(site.requested)
    twice = sum(fetched.values()) - len(fetched)
    print(f"{kills} kills, {twice} fetched twice")
    assert set(fetched) == {f"/{page}" for page in range(pages - 1)}
    assert kills
    # The start page is asked for by each process; else what was in flight, or not recorded yet.
    assert twice <= kills * (1 + 64 + concurrent)
    assert claims_of(valkey).open == 0


@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED])
def test_a_page_is_not_recorded_before_its_links_are_claimed(
    settings: dict[str, Any], r: Any, crawl: Callable[..., Any], site: Any
) -> None:
    site.links = lambda page: [page + 1] if page < 5 else []
    settings = {
        "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
        "BLOOMLOCK_MARK": settings["BLOOMLOCK_MARK"],
        "BLOOMLOCK_RECORD_UNFILTERED": True,
        "SPIDER_MIDDLEWARES": {},
    }
    killed = crawl(spider="DyingSpider", **settings)
    assert killed.process.returncode == -signal.SIGKILL
    let_expire(r)
    assert sorted(crawl(**settings).fetched) == ["/0", "/3", "/4", "/5"]


REFUSES = {"DOWNLOADER_MIDDLEWARES": {**MIDDLEWARE, "__main__.RefusingMiddleware": 300}}


@pytest.mark.parametrize("form", ["generator", "coroutine", "deferred"])
@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED])
def test_a_refused_page_is_not_recorded_before_what_its_errback_yields_is_claimed(
    settings: dict[str, Any], form: str, r: Any, crawl: Callable[..., Any]
) -> None:
    settings = settings | REFUSES
    arguments = {"form": form, "ends": "killed"}
    killed = crawl(spider="ErrbackSpider", arguments=arguments, **settings)
    assert killed.process.returncode == -signal.SIGKILL
    let_expire(r)
    second = crawl(spider="ErrbackSpider", arguments={"form": form}, **settings)
    # The first page is fetched again if the kill came before it was recorded.
    assert {*second.fetched} - {"/0"} == {"/2", "/3"}
    assert second.own("claims/failed") == 0
    assert crawl(spider="ErrbackSpider", **settings).fetched == []


@pytest.mark.parametrize("refuses", [{}, REFUSES], ids=["callback", "errback"])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED])
def test_a_page_that_is_asked_for_once_more_is_not_recorded_before_that_is_there(
    settings: dict[str, Any],
    recorded: bool,
    refuses: dict[str, Any],
    r: Any,
    valkey: str,
    crawl: Callable[..., Any],
) -> None:
    settings = settings | refuses | {"BLOOMLOCK_RECORD_UNFILTERED": recorded}
    killed = crawl(spider="AgainSpider", arguments={"ends": "killed"}, **settings)
    assert killed.process.returncode == -signal.SIGKILL
    let_expire(r)
    second = crawl(spider="AgainSpider", **settings)
    assert second.fetched == ["/1"] * (1 if refuses else 2)
    assert second.own("claims/committed") == 1
    assert crawl(spider="AgainSpider", **settings).fetched == []
    assert claims_of(valkey).open == 0


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("settings", [DOWNLOADED, PROCESSED])
def test_errors_of_an_errback_and_of_its_items(
    settings: dict[str, Any], valkey: str, crawl: Callable[..., Any]
) -> None:
    settings = settings | REFUSES
    picky = {"ITEM_PIPELINES": {"__main__.PickyPipeline": 1}}
    arguments = {"ends": "raises"}
    raised = crawl("raised", spider="ErrbackSpider", arguments=arguments, **settings)
    of_item = crawl("of item", spider="ErrbackSpider", **settings, **picky)
    assert raised.fetched == ["/0", "/2"]
    assert sorted(of_item.fetched) == ["/0", "/2", "/3"]
    is_failure = settings["BLOOMLOCK_MARK"] == "processed"
    for name, error in (("raised", "ZeroDivisionError: /2"), ("of item", "ZeroDivisionError: ")):
        assert errors_of(valkey, name) == ([error] if is_failure else [])


@pytest.mark.usefixtures("r")
def test_a_refused_page_is_recorded_while_the_crawl_goes_on(
    valkey: str, start_spider: Callable[..., Any], site: Any
) -> None:
    site.links = lambda page: [1, 2] if page == 0 else []
    is_recorded = threading.Event()

    def hold(_count: int) -> None:
        if site.requested[-1] == "/2":
            is_recorded.wait(60.0)

    site.on_request = hold
    running = start_spider(**(PROCESSED | REFUSES))
    try:
        wait_until(lambda: "/2" in site.requested, 60.0)
        wait_until(lambda: claims_of(valkey).committed == 2, 60.0)
        assert claims_of(valkey).open == 1
    finally:
        is_recorded.set()
    assert running.finish().fetched == ["/0", "/2"]


@pytest.mark.usefixtures("r")
def test_a_refused_page_is_recorded_where_its_errback_closes_the_spider(
    valkey: str, crawl: Callable[..., Any]
) -> None:
    settings = PROCESSED | REFUSES
    closed = crawl(spider="ErrbackSpider", arguments={"ends": "closes"}, **settings)
    assert closed.stats["finish_reason"] == "as asked"
    assert closed.own("claims/committed") == 2
    assert closed.own("claims/handed_over") == 1
    assert crawl(spider="ErrbackSpider", **settings).fetched == ["/2"]
    assert claims_of(valkey).open == 0


def test_requests_that_wait_behind_items_are_not_lost(
    r: Any, start_spider: Callable[..., Any], site: Any
) -> None:
    # Without batching they are in a queue of Scrapy's, and claimed when they come out of it.
    site.links = lambda page: [page + 1] if page < 4 else []
    alone = {**DOWNLOADED, "SPIDER_MIDDLEWARES": MIDDLEWARE}
    stuck = {"CONCURRENT_ITEMS": 1, "ITEM_PIPELINES": {"__main__.StuckPipeline": 1}}
    killed = start_spider(arguments={"items": ["/2"]}, **alone, **stuck)
    wait_until(lambda: "/2" in site.requested, 60.0)
    time.sleep(8 * SETTLE_SECONDS)
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.finish()
    let_expire(r)
    assert {"/3", "/4"} <= {*start_spider(**alone).finish().fetched}


def test_a_job_directory_and_claims_fetch_nothing_twice(
    r: Any, valkey: str, tmp_path: Any, start_spider: Callable[..., Any], site: Any
) -> None:
    pages = 62
    site.links = lambda page: [2 * page + 1, 2 * page + 2] if 2 * page + 2 <= pages else []
    settings = {
        "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
        "BLOOMLOCK_MARK": "processed",
        "BLOOMLOCK_RECORD_UNFILTERED": True,
        "SPIDER_MIDDLEWARES": {},
        "CONCURRENT_REQUESTS": 2,
        "JOBDIR": str(tmp_path),
    }
    # The job is stopped in order, then killed, which leaves files of its queue half-written.
    first = start_spider(CLOSESPIDER_PAGECOUNT=8, **settings).finish()
    assert first.stats["finish_reason"] == "closespider_pagecount"
    assert claims_of(valkey).open > 0
    before = len(site.requested)
    killed = start_spider(**settings)
    at = before + 8
    pid = killed.process.pid
    site.on_request = lambda count: os.kill(pid, signal.SIGKILL) if count == at else None
    killed.finish()
    assert killed.process.returncode == -signal.SIGKILL
    halves = [file for file in tmp_path.glob("requests.queue/**/*") if file.is_file()]
    assert halves
    for file in halves:
        os.truncate(file, file.stat().st_size // 2)
    let_expire(r)
    unsure = {"/0", *site.requested[before:]}
    last = start_spider(**settings).finish()
    assert last.process.returncode == 0
    fetched = Counter(site.requested)
    assert set(fetched) == {f"/{page}" for page in range(pages + 1)}
    # Twice: what was in flight or not sent yet at the kill. Each start asks for the first page.
    assert {path for path, times in fetched.items() if times > 1} <= unsure
    assert all(fetched[path] <= 2 for path in unsure - {"/0"})
    assert claims_of(valkey).open == 0


def test_what_was_taken_over_and_fails_again_is_left_to_the_next_start(
    r: Any, valkey: str, start_spider: Callable[..., Any], site: Any
) -> None:
    site.links = lambda page: [1] if page == 0 else []
    site.answer = lambda path: [503] if path == "/1" else [200]
    killed = start_spider(**PROCESSED)

    def kill(_count: int) -> None:
        if site.requested[-1] == "/1":
            os.kill(killed.process.pid, signal.SIGKILL)

    site.on_request = kill
    assert killed.finish().process.returncode == -signal.SIGKILL
    site.on_request = None
    let_expire(r)
    for _ in range(2):
        site.requested.clear()
        # It does not stay open for the lease, to fetch the page again and again.
        result = start_spider(**PROCESSED).finish()
        assert result.stats["finish_reason"] == "finished"
        assert site.requested.count("/1") == 2
        assert errors_of(valkey) == ["the status was 503"]
        assert claims_of(valkey).open == 0
