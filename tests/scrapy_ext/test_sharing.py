"""Several processes are one crawl: they share filter and queue, and none takes it from others."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crawling import ADDON, OURS, PATIENCE, RECORDS, SCRAPY_REDIS, SET_UPS, end_leases
from servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from crawling import Runner, Site

PROCESSES = 3
GRAPH = 60


@pytest.fixture
def graph(site: Site) -> Counter[str]:
    """A site of 60 pages with 10 links each; return its paths."""
    chance = random.Random(1)
    pages = {page: chance.choices(range(GRAPH), k=9) for page in range(GRAPH)}
    site.links = lambda page: [*pages[page], (page + 1) % GRAPH]
    return Counter(f"/{page}" for page in range(GRAPH))


@pytest.mark.free_running
@pytest.mark.parametrize("name", ["add-on", "scheduler", "scrapy-redis"])
def test_no_page_is_fetched_twice(
    name: str, crawls: Runner, site: Site, graph: Counter[str]
) -> None:
    all_there = threading.Event()
    site.on_request = lambda _: all_there.wait(PATIENCE)
    set_up = SET_UPS[name] | RECORDS | {"SCHEDULER_IDLE_BEFORE_CLOSE": 1}
    started = [crawls.start(set_up) for _ in range(PROCESSES)]
    wait_until(lambda: crawls.noted("open").total() == PROCESSES, PATIENCE)
    all_there.set()
    done = [process.finish() for process in started]
    fetched = sum((one.pages for one in done), Counter())
    # Without our scheduler each process asks for its start page. (The queue of scrapy-redis is a
    # set: it holds equal requests once, if the second comes before the first is fetched.)
    least, most = {"add-on": (3, 3), "scheduler": (1, 1), "scrapy-redis": (1, 3)}[name]
    assert least <= fetched.pop("/0") <= most
    assert fetched == graph - Counter(["/0"])
    assert [one.reason for one in done] == ["finished"] * PROCESSES


@pytest.mark.parametrize("set_up", [ADDON, SCRAPY_REDIS], ids=["add-on", "scrapy-redis"])
def test_nothing_is_wiped_when_the_first_process_closes(
    set_up: dict[str, Any], crawls: Runner, site: Site
) -> None:
    first_is_closed = threading.Event()
    site.on_request = lambda count: count > 1 or first_is_closed.wait(PATIENCE)
    options = {**set_up, **RECORDS, "SCHEDULER_PERSIST": False}
    second = crawls.start(options)
    wait_until(lambda: site.requested == ["/0"], PATIENCE)
    first = crawls.run(options)
    first_is_closed.set()
    assert first.pages == Counter(site.paths)
    # Its links come after the first has closed, and are all known.
    assert second.finish().fetched == ["/0"]
    assert crawls.run(options).fetched == ["/0"]
    assert ("SCHEDULER_PERSIST is False" in first.log) is (set_up is SCRAPY_REDIS)


def test_a_process_waits_for_what_others_fetch_and_takes_it_over(
    crawls: Runner, site: Site, r: redis.Redis
) -> None:
    """The first process holds the only page there is, until it is killed."""
    held = threading.Event()
    site.on_request = lambda count: count > 1 or held.wait(PATIENCE)
    settings = {**OURS, "BLOOMLOCK_LEASE": 600}
    first = crawls.start(settings)
    wait_until(lambda: site.requested == ["/0"], PATIENCE)
    second = crawls.start(settings)
    wait_until(lambda: crawls.noted("open").total() == 2, PATIENCE)
    first.kill()
    assert second.is_running
    end_leases(r)
    done = second.finish()
    held.set()
    assert done.pages == Counter(site.paths)
    assert done.own("recovered") == 1
    assert r.keys("spider:requests*") == []


@pytest.mark.parametrize("how", ["closespider", "SIGTERM"])
def test_a_crawl_that_is_stopped_in_order_goes_on(
    how: str, crawls: Runner, site: Site, graph: Counter[str]
) -> None:
    limit = {"CLOSESPIDER_PAGECOUNT": 20} if how == "closespider" else {}
    started = crawls.start(OURS, CONCURRENT_REQUESTS=4, **limit)
    if how == "SIGTERM":
        site.on_request = lambda count: count == 20 and started.send(signal.SIGTERM)
    first = started.finish()
    assert 20 <= len(first.fetched) < GRAPH
    second = crawls.run(OURS)
    assert len(second.lines("Resuming crawl")) == 1
    assert first.pages + second.pages == graph


def test_what_is_emptied_and_when(crawls: Runner, graph: Counter[str], r: redis.Redis) -> None:
    stopped = {**OURS, "CLOSESPIDER_PAGECOUNT": 5}
    crawls.run(stopped)
    assert r.zcard("spider:requests") > 0
    crawls.run(stopped, SCHEDULER_PERSIST=False)
    assert r.keys("*spider*") == []
    crawls.run(stopped)
    assert crawls.run(OURS, SCHEDULER_FLUSH_ON_START=True).pages == graph
    assert r.keys("spider:requests*") == []


def test_what_start_yields_is_not_lost_when_a_job_is_stopped(
    crawls: Runner, site: Site, tmp_path: Path
) -> None:
    """It stops while requests are checked that the engine has not asked for yet."""
    site.links = lambda _: []
    set_up = {**ADDON, "JOBDIR": str(tmp_path / "job")}
    first = crawls.run(set_up, spider="SeedSpider", STOP_AFTER=50)
    assert first.reason == "shutdown"
    second = crawls.run(set_up, spider="SeedSpider")
    assert first.pages + second.pages == Counter(f"/0?{number}" for number in range(120))
