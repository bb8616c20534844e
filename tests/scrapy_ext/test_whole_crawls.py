"""Random sites and settings, and what befalls their crawls: what is fetched in the end.

A seed draws a site (tests/support/random_site.py), the settings, and after how many requests a
process is killed or stopped. A model of the site says what must be fetched, and how often: nothing
is lost, no retry and no redirect that leads back is dropped, all items come to the pipelines, and
`dupefilter/filtered` is that of Scrapy's own filter.
"""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from crawling import OURS, SET_UPS, Runner, end_leases, number_of
from random_site import RETRY_TIMES, RandomSite, expected

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from crawling import Forks, Process, Result

ROWS = [("add-on", "none"), ("scheduler", "none"), ("scheduler", "kill"), ("scheduler", "stop")]
LONG_ROWS = [*ROWS, ("filter", "none"), ("scrapy-redis", "none")]
LONG_SEEDS = 40
MOST_RUNS = 12
FILTERS: list[dict[str, Any]] = [
    {},
    {"BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 4},
    {"BLOOMLOCK_WINDOW": 86_400},
    {"BLOOMLOCK_KEY": True},
    {"BLOOMLOCK_NUM_HASHES": 40},
    {"BLOOMLOCK_MIRROR_BYTES": 0, "BLOOMLOCK_NEAR_CACHE": 0},
]
PLANNED = ("as planned", "Error downloading", "Gave up retrying")
"""What the log says of pages that fail."""


@dataclass
class Case:
    """What a seed draws. `moments`: after how many requests to the site the trouble comes."""

    set_up: str
    trouble: str
    seed: int
    site: RandomSite = field(repr=False)
    moments: list[int]
    settings: dict[str, Any]


def draw(set_up: str, trouble: str, seed: int) -> Case:
    site = RandomSite(random.Random(f"site {seed}"))
    chance = random.Random(f"case {seed}")
    settings = {
        "BLOOMLOCK_CAPACITY": 10_000,
        # So none is refused by chance.
        "BLOOMLOCK_ERROR_RATE": 1e-9,
        "BLOOMLOCK_LEASE": 600,
        "BLOOMLOCK_RECORD_UNFILTERED": chance.random() < 0.5,
        "CONCURRENT_REQUESTS": chance.choice([1, 2, 4, 16]),
        "CONCURRENT_ITEMS": chance.choice([1, 100]),
        "RETRY_TIMES": RETRY_TIMES,
        "RETRY_PRIORITY_ADJUST": chance.choice([-1, 5]),
        "ITEM_PIPELINES": {"__main__.DyingPipeline": 1},
        "DUPEFILTER_DEBUG": chance.random() < 0.3,
        **chance.choice(FILTERS),
    }
    if chance.random() < 0.2:
        settings["TWISTED_REACTOR"] = "twisted.internet.selectreactor.SelectReactor"
    if set_up == "scheduler":
        queue = chance.choice(["PriorityQueue", "FifoQueue", "LifoQueue"])
        settings["SCHEDULER_QUEUE_CLASS"] = f"scrapy_redis.queue.{queue}"
    reached = len(expected(site.pages, starts=1, records_start=True).asked)
    moments = sorted(chance.choices(range(1, reached // 2 + 1), k=2))
    return Case(set_up, trouble, seed, site, moments, settings)


class Blow:
    """Sends a signal to a process once, at a request to the site or soon after it."""

    def __init__(self, process: Process, number: signal.Signals, at: int) -> None:
        self.process, self.number, self.at = process, number, at

    def __call__(self, count: int) -> None:
        if count >= self.at:
            self.at = 1 << 30
            self.process.send(self.number)


def run(case: Case, crawls: Runner, r: redis.Redis) -> list[Result]:
    """Run the crawl, and run it again until all is done."""
    sent = signal.SIGKILL if case.trouble == "kill" else signal.SIGTERM
    moments = [] if case.trouble == "none" else [*case.moments]
    done: list[Result] = []
    while not done or not done[-1].stats or done[-1].reason != "finished":
        assert len(done) < MOST_RUNS, "it comes to no end"
        end_leases(r)
        process = crawls.start(
            SET_UPS[case.set_up],
            spider="DyingSpider",
            arguments={"how": case.site.how, "raises": case.site.raises},
            start="/0?a=1&b=2",
            **case.settings,
        )

        # Each process once: after a second signal Scrapy does not stop in order.
        case.site.on_request = Blow(process, sent, moments.pop(0)) if moments else None
        done.append(process.finish())
        assert done[-1].code in ({0, -signal.SIGKILL} if case.trouble == "kill" else {0})
    return done


def check(case: Case, done: list[Result], crawls: Runner, r: redis.Redis) -> None:
    """Compare what was fetched with what must be."""
    for one in done:
        check_log(one)
    is_exact = case.trouble == "none"
    assert (len(done) == 1) is is_exact
    pages, asked = case.site.pages, case.site.asked
    recorded = case.settings["BLOOMLOCK_RECORD_UNFILTERED"] or SET_UPS[case.set_up] is OURS
    must = expected(pages, starts=1, records_start=recorded)
    assert {*asked} <= {*must.asked}
    # A page of a circle that had its first answer when the process ended leads there no more.
    unsure = {one.to for one in pages if one.kind == "circle" and not is_exact}
    wanted = {("asked", page): least for page, (least, _) in must.asked.items()}
    for what in ("done", "item"):
        wanted |= {(what, page): least for page, least in must.done.items()}
    raised = [one.number for one in pages if one.kind == "raises" and asked[one.number]]
    wanted |= {("item", page): 1 for page in raised}
    found = Counter({("asked", page): times for page, times in asked.items()})
    for what in ("done", "item"):
        for path, times in crawls.noted(what).items():
            found[what, number_of(path)] += times
    lost = {
        (what, page, pages[page].kind): (found[what, page], least)
        for (what, page), least in wanted.items()
        if found[what, page] < (least if is_exact else 1) and page not in unsure
    }
    assert not lost, f"lost (found, expected): {lost}"
    if is_exact:
        most = {page: most for page, (_, most) in must.asked.items()}
        again = {page: times for page, times in asked.items() if times > most[page]}
        assert not again, f"fetched again: {again}"
        assert done[0].stats["dupefilter/filtered"] == must.refused
        assert done[0].own("errors") == done[0].own("outages") == 0
    if case.set_up == "scheduler":
        assert r.keys("*spider:requests*") == []


def check_log(one: Result) -> None:
    """Look for errors that nobody planned."""
    for record in re.split(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )", one.log, flags=re.MULTILINE):
        is_planned = any(said in record for said in PLANNED)
        for bad in ("Traceback", " ERROR: ", " CRITICAL: ", "was never awaited"):
            assert is_planned or bad not in record, record


def carry_out(case: Case, forks: Forks, valkey: str, r: redis.Redis, notes: Path) -> None:
    """Carry a case out and check it."""
    print(f"{case}, {dict(Counter(page.kind for page in case.site.pages))}")
    r.flushall()
    with case.site.served() as site:
        crawls = Runner(forks, valkey, site, notes)
        try:
            check(case, run(case, crawls, r), crawls, r)
        finally:
            crawls.end()


@pytest.mark.parametrize(("set_up", "trouble"), ROWS)
def test_a_random_crawl(
    set_up: str, trouble: str, forks: Forks, valkey: str, r: redis.Redis, tmp_path: Path, seed: int
) -> None:
    carry_out(draw(set_up, trouble, seed), forks, valkey, r, tmp_path / "notes")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("set_up", "trouble"), LONG_ROWS)
def test_many_random_crawls(
    set_up: str, trouble: str, forks: Forks, valkey: str, r: redis.Redis, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(LONG_SEEDS):
        case = draw(set_up, trouble, chance.randrange(10**9))
        carry_out(case, forks, valkey, r, tmp_path / f"notes {number}")
