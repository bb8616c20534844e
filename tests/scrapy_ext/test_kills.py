"""kill -9 loses nothing, and the next process of this host goes on at once."""

from __future__ import annotations

import random
import re
import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, PATIENCE, end_leases, in_flight
from servers import wait_until

from scrapy_ext import crawl_state

if TYPE_CHECKING:
    import redis
    from crawling import Process, Runner, Site

PAGES = 15
DYING: dict[str, Any] = {
    "spider": "DyingSpider",
    "CONCURRENT_REQUESTS": 1,
    "ITEM_PIPELINES": {"__main__.DyingPipeline": 1},
    # Who waits for it does not end.
    "BLOOMLOCK_LEASE": 3600,
}


@pytest.fixture
def tree(site: Site) -> Counter[str]:
    """Pages to each of which one other leads, so one that is lost takes all below it along."""
    site.links = lambda page: [
        child for child in (2 * page + 1, 2 * page + 2, 0, page) if child < PAGES
    ]
    return Counter(["/0", *(f"/{page}" for page in range(PAGES))])


@pytest.mark.parametrize(
    ("event", "page"),
    [
        *((event, "/1") for event in ("asked", "callback", "half", "item", "done")),
        # The start page is pushed in a way of its own.
        ("asked", "/0"),
        ("half", "/0"),
    ],
)
def test_nothing_is_lost(
    event: str, page: str, crawls: Runner, site: Site, tree: Counter[str], r: redis.Redis
) -> None:
    killed = crawls.run(ADDON, arguments={"dies": [event, page]}, **DYING)
    assert killed.code == -signal.SIGKILL, killed.log
    begun = in_flight(r)
    last = crawls.run(**DYING)
    assert last.reason == "finished"
    assert last.lines("Goes on with the crawl 'spider'")
    assert set(crawls.noted("done")) == set(crawls.noted("item")) == set(tree)
    again = Counter(site.requested) - tree
    assert again.total() <= begun
    assert r.keys("*") == [b"{spider}:crawl"]


def test_what_a_page_made_is_queued_before_the_page_is_done(
    crawls: Runner, site: Site, tree: Counter[str], r: redis.Redis
) -> None:
    """So there is no moment at which a kill loses it."""
    queued: set[str] = set()
    page_of: dict[str, str] = {}
    done: list[str] = []

    def follow(command: str) -> None:
        what, _, rest = command.partition(" {spider}:")
        key, _, rest = rest.partition(" ")
        path = "".join(re.findall(r"http://[^/]*(/[0-9]+)", rest)[:1])
        if (what, key) == ("ZADD", "queue"):
            queued.add(path)
        elif (what, key) == ("HSET", "taken"):
            page_of[rest.split(" ")[0]] = path
        elif (what, key) == ("HDEL", "taken"):
            done.append(page_of[rest])
            assert {f"/{link}" for link in site.links(int(done[-1][1:]))} <= queued

    with r.monitor() as monitor:
        started = crawls.start(spider="LinkSpider")
        while len(done) < PAGES + 1:
            follow(monitor.next_command()["command"])
        assert started.finish().reason == "finished"
    assert Counter(done) == tree


def test_a_page_stays_open_until_the_requests_are_done_that_stay_in_its_process(
    crawls: Runner, site: Site
) -> None:
    children = [f"/{page}" for page in range(1, 20)]
    site.links = lambda page: range(1, 20) if page == 0 else []
    options: dict[str, Any] = {"spider": "LambdaSpider", "CONCURRENT_REQUESTS": 2}
    killed = crawls.start(ADDON, **options)
    site.on_request = lambda count: count == 10 and killed.kill()
    assert killed.finish().code == -signal.SIGKILL
    done = crawls.noted("done")
    assert 0 < len(done) < len(children)
    last = crawls.run(**options)
    assert last.reason == "finished"
    assert set(crawls.noted("done")) == {"/0", *children}
    assert last.lines("the page that made it stays open until it is done")


def test_a_request_that_stays_in_its_process_is_not_fetched_again(
    crawls: Runner, site: Site
) -> None:
    """Its page is, which makes it again: it is in the filter when it is done."""
    site.links = lambda page: range(1, 9) if page == 0 else []
    crawls.run(spider="LambdaSpider", CLOSESPIDER_PAGECOUNT=4, CONCURRENT_REQUESTS=1)
    assert crawls.run(spider="LambdaSpider").reason == "finished"
    assert Counter(site.requested) == Counter(["/0", "/0", *(f"/{page}" for page in range(1, 9))])


@pytest.mark.parametrize("answer", [[302, "/2"], [503]], ids=["redirect", "retry"])
def test_so_it_does_for_what_the_downloader_makes_of_them(
    answer: list[Any], crawls: Runner, site: Site
) -> None:
    site.links = lambda page: [1] if page == 0 else []
    site.answer = lambda path: answer if path == "/1" and len(site.requested) < 4 else [200]
    killed = crawls.start(ADDON, spider="LambdaSpider")
    site.on_request = lambda count: count == 3 and killed.kill()
    assert killed.finish().code == -signal.SIGKILL
    assert crawls.run(spider="LambdaSpider").reason == "finished"
    assert crawls.noted("done") == {"/0": 2, "/1": 1}


def test_one_that_is_yielded_three_times_is_fetched_as_often(crawls: Runner, site: Site) -> None:
    assert crawls.run(spider="InsistentSpider").reason == "finished"
    assert site.requested == ["/0", "/1", "/1", "/1"]


def test_one_that_fails_after_retries_makes_its_page_fail(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    site.links = lambda page: [1] if page == 0 else []
    site.answer = lambda path: [503] if path == "/1" else [200]
    assert crawls.run(spider="LambdaSpider").own("failed") == 1
    assert site.requested == ["/0", "/1", "/1", "/1"]
    (value,) = r.hvals("{spider}:failed")
    assert b"which it made, failed: status 503" in value


def test_one_that_fails_makes_its_page_fail(crawls: Runner, site: Site, r: redis.Redis) -> None:
    site.links = lambda page: [1, 2] if page == 0 else []
    arguments = {"how": {"/1": {"partial": True}}, "raises": ["/1"]}
    result = crawls.run(arguments=arguments)
    assert set(result.fetched) == {"/0", "/1", "/2"}
    (value,) = r.hvals("{spider}:failed")
    assert b"/1>, which it made, failed: ZeroDivisionError: /1" in value


def test_a_lease_that_is_over_does_not_stop_a_process(
    crawls: Runner, site: Site, tree: Counter[str], r: redis.Redis
) -> None:
    site.on_request = lambda count: count == 4 and end_leases(r)
    result = crawls.run(**DYING)
    assert result.reason == "finished"
    assert set(crawls.noted("done")) == set(tree)


def test_a_process_is_dead_before_anybody_has_waited_for_it() -> None:
    """As in a container whose first process waits for none."""
    with subprocess.Popen(["sleep", "10000"]) as child:
        worker = f"{crawl_state._place()}/{child.pid}/{crawl_state._started(child.pid)}/0"
        assert crawl_state.dead_among([worker, crawl_state.new_worker()]) == []
        child.kill()
        wait_until(lambda: crawl_state.dead_among([worker]) == [worker], PATIENCE)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("spider", ["LinkSpider", "LambdaSpider"])
def test_random_kills(
    spider: str,
    processes: int,
    crawls: Runner,
    site: Site,
    r: redis.Redis,
    seed: int,
    pytestconfig: pytest.Config,
) -> None:
    chance = random.Random(seed)
    pages = 300 if pytestconfig.getoption("--long") else 60
    kills = 25 if pytestconfig.getoption("--long") else 3
    site.links = lambda page: [(3 * page + step) % pages for step in (1, 2, 3)]
    options: dict[str, Any] = {"spider": spider, "arguments": {"items": []}, "BLOOMLOCK_LEASE": 600}
    running: list[Process] = []
    at = sorted(chance.sample(range(2, pages - 5), kills))

    def blow(count: int) -> None:
        if at and count >= at[0]:
            at.pop(0)
            chance.choice(running).send(signal.SIGKILL)

    site.on_request = blow
    for _ in range(kills + 2):
        running[:] = [crawls.start(ADDON, **options) for _ in range(processes)]
        ended = [process.finish() for process in running]
        if any(one.code == 0 and one.reason == "finished" for one in ended):
            break
    assert {*site.requested} == {f"/{page}" for page in range(pages)}
    if spider == "LinkSpider":
        assert len(site.requested) <= pages + 1 + 16 * processes * kills
    wait_until(lambda: in_flight(r) == 0, PATIENCE)
