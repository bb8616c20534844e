"""The scheduler that processes share: whole crawls."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from proxy import Proxy
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.scrapy_ext.conftest import Crawl, Site

OURS = {"SCHEDULER": "scrapy_ext.Scheduler"}
PATIENCE = 300.0


@pytest.fixture
def graph(site: Site) -> set[str]:
    """A site of 100 pages with 10 links each; return its paths."""
    links = random.Random(1)
    pages = {page: links.choices(range(100), k=9) for page in range(100)}
    site.links = lambda page: [*pages[page], (page + 1) % 100]
    return {f"/{page}" for page in range(100)}


def await_workers(server: redis.Redis, count: int, name: str = "spider") -> None:
    until = time.monotonic() + PATIENCE
    while server.zcard(f"{name}:requests:workers") < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def left(server: redis.Redis) -> list[bytes]:
    """The keys that are left of a queue."""
    return server.keys("spider:requests*")


GROWS = {"BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 4}


@pytest.mark.parametrize(
    "more", [{}, {"BLOOMLOCK_WINDOW": 86_400}, GROWS], ids=["", "window", "grows"]
)
def test_a_crawl_fetches_what_an_in_memory_one_does(
    more: dict[str, Any], site: Site, server: redis.Redis, crawl: Callable[..., Crawl]
) -> None:
    done = crawl(**OURS, **more)
    assert sorted(done.fetched) == site.paths
    assert done.stats["dupefilter/filtered"] == 2 * 8 * 8 - 7
    assert done.stats["scheduler/enqueued"] == done.stats["scheduler/dequeued"] == 8
    assert left(server) == []
    # The next run, here without asyncio, fetches its start page, and what is new.
    again = crawl(**OURS, **more, TWISTED_REACTOR="twisted.internet.selectreactor.SelectReactor")
    assert again.fetched == ["/0"]


@pytest.mark.parametrize(
    "more", [{}, {"BLOOMLOCK_WINDOW": 86_400}, GROWS], ids=["", "window", "grows"]
)
def test_a_page_that_is_forgotten_is_fetched_again(
    more: dict[str, Any],
    valkey: str,
    site: Site,
    server: redis.Redis,
    crawl: Callable[..., Crawl],
) -> None:
    del server
    site.links = lambda page: [1, min(page + 1, 7)]
    forgotten: list[bool] = []

    def forget(number: int) -> None:
        if number == 5:
            with BloomFilter.open("spider:dupefilter", client=valkey) as shared:
                forgotten.append(shared.discard(fingerprint(Request(f"{site.url}/1"))))

    site.on_request = forget
    done = crawl(**OURS, **more, BLOOMLOCK_MAX_STALENESS=3600)
    assert forgotten == [True]
    assert Counter(done.fetched) == Counter([*site.paths, "/1"])


PLAIN = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter", "SPIDER_MIDDLEWARES": {}}


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("scheduler", [PLAIN, OURS], ids=["scrapy", "ours"])
@pytest.mark.parametrize("record", [False, True])
def test_what_an_errback_forces_is_fetched_and_recorded_as_with_scrapy(
    record: bool, scheduler: dict[str, Any], site: Site, crawl: Callable[..., Crawl]
) -> None:
    site.links = lambda page: {2: [3], 3: [2]}.get(page, [])
    refuses = {"DOWNLOADER_MIDDLEWARES": {"__main__.RefusingMiddleware": 300}}
    settings = {**scheduler, **refuses, "BLOOMLOCK_RECORD_UNFILTERED": record}
    done = crawl(spider="ForcingSpider", **settings)
    # What was forced is fetched for a link as well, unless it is recorded.
    is_recorded = record and scheduler is OURS
    assert done.fetched == ["/2", "/3"] + ([] if is_recorded else ["/2"])
    assert done.stats["finish_reason"] == "finished"


@pytest.mark.usefixtures("server")
def test_what_a_start_request_is_redirected_to_is_recorded(
    site: Site, crawl: Callable[..., Crawl]
) -> None:
    site.answer = lambda path: [302, "/1"] if path == "/0" else [200]
    site.links = lambda _: [0, 1, 2]
    assert sorted(crawl(**OURS).fetched) == ["/1", "/2"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("meta", [{"bloomlock_filter": False}, {"bloomlock_record": False}])
def test_equal_requests_that_wait_together_are_fetched_each(
    meta: dict[str, bool], site: Site, crawl: Callable[..., Crawl]
) -> None:
    site.links = lambda page: [1, 1] if page == 0 else []
    done = crawl(spider="ControlSpider", arguments={"meta": {"/1": meta}}, **OURS)
    assert done.fetched == ["/0", "/1", "/1"]
    assert done.stats["scheduler/enqueued"] == done.stats["scheduler/dequeued"] == 3


@pytest.mark.parametrize("more", [{}, GROWS], ids=["", "grows"])
def test_processes_share_one_crawl(
    more: dict[str, Any],
    site: Site,
    graph: set[str],
    server: redis.Redis,
    start_spider: Callable[..., Crawl],
) -> None:
    all_there = threading.Event()
    site.on_request = lambda _: all_there.wait(PATIENCE)
    crawls = [start_spider(**OURS, **more) for _ in range(4)]
    await_workers(server, 4)
    all_there.set()
    done = [one.finish() for one in crawls]
    fetched = Counter(path for one in done for path in one.fetched)
    assert fetched == dict.fromkeys(graph, 1)
    assert [one.stats["finish_reason"] for one in done] == ["finished"] * 4
    assert left(server) == []
    with BloomFilter.open("spider:dupefilter", client=server) as made:
        assert (made.info().slices > 1) is bool(more)


def test_killed_processes_lose_nothing(
    site: Site, server: redis.Redis, start_spider: Callable[..., Crawl], seed: int
) -> None:
    chance = random.Random(seed)
    # Only one page leads to a page, so who loses a page that has links loses what is behind it.
    site.links = lambda page: [
        0,
        *(child for child in range(3 * page + 1, 3 * page + 4) if child < 90),
    ]
    settings = {**OURS, "BLOOMLOCK_LEASE": 3, "CONCURRENT_REQUESTS": 4}
    # 29 pages have links, so the last four of them are asked for after 25 requests at least.
    moments = sorted(chance.sample(range(1, 26), 4))
    crawls: list[Crawl] = []
    lock = threading.Lock()

    def kill(count: int) -> None:
        """Kill processes while they wait for a page that has links."""
        page = int(site.requested[count - 1][1:])
        with lock:
            if moments and moments[0] <= count and page < 29:
                moments.pop(0)
                for number, one in enumerate(crawls):
                    os.kill(one.process.pid, signal.SIGKILL)
                    crawls[number] = start_spider(**settings)

    site.on_request = kill
    with lock:
        crawls += [start_spider(**settings) for _ in range(2)]
    while pending := [one for one in crawls if not one.stats]:
        pending[0].finish()
    assert moments == []
    assert {int(path[1:]) for path in site.requested} == set(range(90))
    assert left(server) == []


def test_requests_that_are_made_again_or_have_no_form(
    site: Site, server: redis.Redis, crawl: Callable[..., Crawl]
) -> None:
    asked: Counter[str] = Counter()

    def answer(path: str) -> list[Any]:
        asked[path] += 1
        if asked[path] > 1:
            return [200]
        return {"/2": [503], "/4": [302, "/4"], "/6": [302, "/7"]}.get(path, [200])

    site.answer = answer
    done = crawl(**OURS, spider="OddSpider", RETRY_PRIORITY_ADJUST=5)
    assert sorted(done.fetched) == ["/0", "/1", "/2", "/3", "/4", "/5", "/7"]
    assert asked == {**dict.fromkeys(site.paths, 1), "/2": 2, "/4": 2}
    assert done.stats["scheduler/unserializable"] > 0
    assert done.log.count("Unable to serialize") == 1
    assert left(server) == []


def test_a_crawl_waits_for_a_server_that_is_away(
    site: Site, graph: set[str], valkey: str, server: redis.Redis, crawl: Callable[..., Crawl]
) -> None:
    # A step is tried three times before it counts as failed.
    ways = iter([*["pass"] * 5, *["after"] * 3, *["pass"] * 3, *["before"] * 3])
    with Proxy(valkey) as proxy:
        proxy.judge = lambda name, _: next(ways, "pass") if name == "EVALSHA" else "pass"
        done = crawl(**OURS, REDIS_URL=proxy.url)
        assert proxy.cuts == {"before": 3, "after": 3}
    assert sorted(done.fetched) == sorted(graph)
    assert done.stats["bloomlock/outages"] == done.stats["bloomlock/errors"] == 2
    assert "answers again after" in done.log
    assert left(server) == []


def test_a_crawl_that_is_stopped_goes_on(
    site: Site, graph: set[str], server: redis.Redis, start_spider: Callable[..., Crawl]
) -> None:
    first = start_spider(**OURS, CLOSESPIDER_PAGECOUNT=20).finish()
    assert len(first.fetched) < 100
    assert server.zcard("spider:requests") > 0
    second = start_spider(**OURS).finish()
    assert "Resuming crawl" in second.log
    assert sorted(first.fetched + second.fetched) == sorted(graph)


def test_what_is_emptied_and_when(
    site: Site, graph: set[str], server: redis.Redis, start_spider: Callable[..., Crawl]
) -> None:
    stopped = {**OURS, "CLOSESPIDER_PAGECOUNT": 5}
    start_spider(**stopped).finish()
    waiting = server.zcard("spider:requests")
    assert waiting > 0
    start_spider(**stopped, SCHEDULER_PERSIST=False).finish()
    assert server.keys("*spider*") == []
    start_spider(**stopped).finish()
    flushed = start_spider(**OURS, SCHEDULER_FLUSH_ON_START=True).finish()
    assert sorted(flushed.fetched) == sorted(graph)
    assert left(server) == []


def test_commands_that_look_leave_the_queue_alone(site: Site, server: redis.Redis) -> None:
    ours = ["-s", "SCHEDULER=scrapy_ext.Scheduler", "-s", "REDIS_URL=redis://127.0.0.1:1"]
    command = [sys.executable, "-m", "scrapy", "fetch", *ours, f"{site.url}/0"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert 'href="/7"' in done.stdout
