"""Random sites and settings, and what befalls their crawls: what is fetched in the end.

A seed draws a site (tests/support/random_site.py), the settings, and the moments of the trouble. A
model of the site says what must be fetched, and how often. Of docs/scrapy.md these are held:

- "All processes of a spider share one queue and one filter." With Scrapy's own scheduler each asks
  for the start page.
- "If the process dies, the next one that asks takes it over": nothing is lost with our scheduler,
  killed or stopped. Only what was in flight is fetched again.
- "A retry is never dropped. Nor is a redirect that leads back to its own page, at once or through
  others."
- Batching: all items come to the pipelines, and `dupefilter/filtered` is that of Scrapy's filter.
- "While the server is away the crawl waits", or what is not known is let through.
"""

from __future__ import annotations

import random
import re
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from crawling import (
    ADDON,
    FILTER,
    OURS,
    PATIENCE,
    SCRAPY_REDIS,
    Process,
    Runner,
    end_leases,
    number_of,
)
from proxy import Proxy
from random_site import RETRY_TIMES, RandomSite, expected
from servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from crawling import Forks, Result
    from proxy import Verdict
    from random_site import Expected

SET_UPS = {"filter": FILTER, "add-on": ADDON, "scheduler": OURS, "scrapy-redis": SCRAPY_REDIS}
ROWS = [("add-on", "none"), ("scheduler", "kill"), ("scheduler", "stop"), ("scheduler", "replies")]
"""Set-ups and what befalls them; a process runs alone, and at known moments."""
LONG = [*ROWS, ("filter", "none"), ("add-on", "replies"), ("scrapy-redis", "none")]
LONG_SEEDS = 40
MOST_RUNS = 12
MOST_LOST = 20
"""Replies that are lost in a crawl; each outage takes it half a second."""
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
    """What a seed draws. `moments`: after how many requests to the site trouble comes."""

    set_up: str
    trouble: str
    seed: int
    processes: int
    site: RandomSite = field(repr=False)
    moments: list[int]
    settings: dict[str, Any]
    chance: random.Random = field(repr=False)

    @property
    def records_start(self) -> bool:
        return self.settings["BLOOMLOCK_RECORD_UNFILTERED"] or self.set_up == "scheduler"


def draw(set_up: str, trouble: str, seed: int, processes: int) -> Case:
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
    moments = sorted(chance.sample(range(1, len(site.pages) // 3 + 2), 2))
    return Case(set_up, trouble, seed, processes, site, moments, settings, chance)


class Trial:
    """Carries a case out: runs processes until none is left, each again if it was killed."""

    def __init__(self, case: Case, crawls: Runner, r: redis.Redis) -> None:
        self.case, self.site, self.crawls, self.r = case, case.site, crawls, r
        self.ended: list[Result] = []
        self.moments = [*case.moments] if case.trouble in {"kill", "stop"} else []
        self.lock = threading.Lock()
        self.running: list[Process] = []
        self.is_begun = False

    def judge(self, name: str, _: int) -> Verdict:
        # A crawl does not start without its server.
        if name == "PING" or not self.is_begun or self.lost >= MOST_LOST:
            return "pass"
        with self.lock:
            drawn = self.case.chance.random()
            self.lost += drawn < 0.1
        return "before" if drawn < 0.05 else "after" if drawn < 0.1 else "pass"

    lost = 0

    def on_request(self, count: int) -> None:
        with self.lock:
            if not self.moments or count < self.moments[0]:
                return
            self.moments.pop(0)
            number = signal.SIGKILL if self.case.trouble == "kill" else signal.SIGTERM
            self.running[0].send(number)

    def start(self, url: str) -> None:
        process = self.crawls.start(
            SET_UPS[self.case.set_up],
            spider="DyingSpider",
            arguments={"how": self.site.how, "raises": self.site.raises},
            start="/0?a=1&b=2",
            REDIS_URL=url,
            **self.case.settings,
        )
        with self.lock:
            self.running.append(process)

    def run(self, url: str) -> None:
        """Run it, and run it again until all that is to be done is done."""
        self.site.on_request = self.on_request
        for _ in range(self.case.processes):
            self.start(url)
        opened = self.case.processes
        wait_until(lambda: self.crawls.noted("open").total() >= opened, PATIENCE)
        self.is_begun = True
        while self.running:
            wait_until(lambda: not all(one.is_running for one in self.running), PATIENCE)
            (done, *_) = [one for one in self.running if not one.is_running]
            self.ended.append(done.finish())
            with self.lock:
                self.running.remove(done)
            assert len(self.ended) < MOST_RUNS, "it comes to no end"
            stats = self.ended[-1].stats
            if self.ended[-1].code == -signal.SIGKILL:
                end_leases(self.r)
                self.start(url)
            elif self.case.trouble == "stop" and stats and stats["finish_reason"] != "finished":
                self.start(url)


def check(trial: Trial) -> None:
    """Compare what was fetched with what must be."""
    case = trial.case
    for one in trial.ended:
        # A second SIGTERM may come at its end, where Scrapy handles no signals any more.
        assert one.code in {0, -signal.SIGKILL, -signal.SIGTERM}, one.log
        check_log(case, one)
    starts = 1 if case.set_up == "scheduler" else case.processes
    must = expected(case.site.pages, starts=starts, records_start=case.records_start)
    asked = trial.site.asked
    assert {*asked} <= {*must.asked}
    check_nothing_is_lost(trial, must, asked)
    if case.trouble == "none" or (case.trouble == "replies" and case.processes == 1):
        again = {
            page: (found, must.asked[page][1])
            for page, found in asked.items()
            if found > must.asked[page][1]
        }
        assert not again, f"fetched again (found, most): {again}"
    check_stats(trial, must)
    assert case.trouble != "kill" or -signal.SIGKILL in [one.code for one in trial.ended]
    assert case.trouble != "stop" or len(trial.ended) > 1
    if case.set_up == "scheduler":
        assert trial.r.keys("*spider:requests*") == []


def check_log(case: Case, one: Result) -> None:
    """Look for errors that nobody planned."""
    for record in re.split(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )", one.log, flags=re.MULTILINE):
        is_planned = any(said in record for said in PLANNED)
        is_of_outage = case.trouble == "replies" and "[bloomlock.scrapy]" in record
        for bad in ("Traceback", " ERROR: ", " CRITICAL: ", "was never awaited"):
            assert is_planned or is_of_outage or bad not in record, record


def check_nothing_is_lost(trial: Trial, must: Expected, asked: Counter[int]) -> None:
    case, pages = trial.case, trial.site.pages
    is_exact = case.trouble in {"none", "replies"}
    # A page of a circle that had its first answer when the process ended leads there no more.
    unsure = {one.to for one in pages if one.kind == "circle" and not is_exact}
    wanted = {("asked", page): least for page, (least, _) in must.asked.items()}
    for what in ("done", "item"):
        wanted |= {(what, page): least for page, least in must.done.items()}
    wanted |= {
        ("item", one.number): 1 for one in pages if one.kind == "raises" and asked[one.number]
    }
    found = Counter({("asked", page): times for page, times in asked.items()})
    for what in ("done", "item"):
        for path, times in trial.crawls.noted(what).items():
            found[what, number_of(path)] += times
    lost = {
        (what, page, pages[page].kind): (found[what, page], least)
        for (what, page), least in wanted.items()
        if found[what, page] < (least if is_exact else 1) and page not in unsure
    }
    assert not lost, f"lost (found, expected): {lost}"


def check_stats(trial: Trial, must: Expected) -> None:
    case = trial.case
    if case.trouble != "none":
        return
    assert [one.reason for one in trial.ended] == ["finished"] * case.processes
    total: Counter[str] = Counter()
    for one in trial.ended:
        total.update({name: value for name, value in one.stats.items() if isinstance(value, int)})
    assert total["bloomlock/errors"] == total["bloomlock/outages"] == 0
    if case.processes == 1:
        assert total["dupefilter/filtered"] == must.refused


def carry_out(case: Case, forks: Forks, valkey: str, r: redis.Redis, folder: Path) -> None:
    """Carry a case out and check it."""
    kinds = Counter(page.kind for page in case.site.pages)
    print(f"{case}, {dict(kinds)}")
    r.flushall()
    with case.site.served() as site, Proxy(valkey) as proxy:
        folder.mkdir()
        crawls = Runner(forks, valkey, site, folder / "notes")
        trial = Trial(case, crawls, r)
        if case.trouble == "replies":
            proxy.judge = trial.judge
        try:
            trial.run(proxy.url)
        finally:
            crawls.end()
        check(trial)


@pytest.mark.parametrize(("set_up", "trouble"), ROWS)
def test_a_random_crawl(
    set_up: str, trouble: str, forks: Forks, valkey: str, r: redis.Redis, tmp_path: Path, seed: int
) -> None:
    carry_out(draw(set_up, trouble, seed, 1), forks, valkey, r, tmp_path / "case")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("set_up", "trouble"), LONG)
def test_many_random_crawls(
    set_up: str, trouble: str, forks: Forks, valkey: str, r: redis.Redis, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(LONG_SEEDS):
        case = draw(set_up, trouble, chance.randrange(10**9), chance.choice([1, 1, 2, 3]))
        carry_out(case, forks, valkey, r, tmp_path / f"{number}")
