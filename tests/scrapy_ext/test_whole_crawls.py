"""Random sites, settings and disturbances, all at once: what whole crawls fetch in the end.

A seed draws a site (tests/support/random_site.py), a set-up and what befalls the crawl. A model of
the site says what must be fetched, and how often. Of docs/scrapy.md these are held:

- Several processes: "All processes of a spider share one queue and one filter": each page is
  fetched once by all of them, with any scheduler. With Scrapy's own each asks for the start page.
- Recorded when done: "A process may be killed at any moment: what it had claimed is taken over by
  the next start, and by a spider that has nothing else to do." "What waits when a spider is stopped
  in order is handed over to the next start at once." "With JOBDIR both its queue and the claims are
  there at the next start." A failure "is given back with its error and tried again by the next
  start"; "the process that failed filters it until then". No claim is open after the end.
- Meta: what is forced is fetched each time and counts as seen; what is not recorded is filtered and
  does not count; "redirects and retries have the keys of their request".
- "A retry is never dropped. Nor is a redirect that leads back to its own page, at once or through
  others." "A redirect to another page that is seen is dropped."
- Batching: "Items and requests keep their order", and none is lost: all items come to the
  pipelines. "A crawl that is stopped in order schedules what was checked."
- Outages: "While the server is away later, every request that this process has seen is filtered
  all the same", and by BLOOMLOCK_ON_OUTAGE another "is let through, `drop`ped, or `close`s the
  spider". With scrapy_ext.Scheduler "the crawl waits, and goes on by itself".
- Crashes: the table of what is lost: nothing with BLOOMLOCK_MARK or scrapy_ext.Scheduler; nothing
  with JOBDIR or the scheduler of scrapy-redis if the crawl is stopped in order.
- Stats: `dupefilter/filtered` is what Scrapy's own filter would count.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from claim_tools import let_expire
from proxy import Proxy
from random_site import RETRY_TIMES, SiteServer, expected, make_plan
from servers import wait_until

from bloomlock import BloomFilter
from bloomlock.server import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from proxy import Verdict
    from random_site import Expected, Plan

    from tests.scrapy_ext.conftest import Spider

PATIENCE = 240.0
LEASE = 600.0
NAME = "spider:dupefilter"
SEEDS = (31, 1035, 3027, 6143)
"""They have found faults."""
LONG_PARTS, LONG_SEEDS = 30, 10
MOST_RUNS = 12
MOST_LOST = 40
"""Replies that are lost in a crawl; each outage takes it half a second."""

FILTERS: list[dict[str, Any]] = [
    {},
    {},
    {"BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 4},
    {"BLOOMLOCK_ON_FULL": "grow", "BLOOMLOCK_CAPACITY": 20, "BLOOMLOCK_KEY": "k" * 32},
    {"BLOOMLOCK_WINDOW": 86_400},
    {"BLOOMLOCK_WINDOW": 86_400, "BLOOMLOCK_SLICES": 6},
    {"BLOOMLOCK_LAYOUT": "blocked"},
    {"BLOOMLOCK_KEY": True},
    {"BLOOMLOCK_OPTIMIZE": "memory"},
    {"BLOOMLOCK_NUM_HASHES": 40},
    {"BLOOMLOCK_STRATEGY": "lua"},
    {"BLOOMLOCK_MIRROR_BYTES": 0},
]
ADDON = {"ADDONS": {"scrapy_ext.BloomlockAddon": 500}}
SCRAPY_REDIS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}
OURS = {"SCHEDULER": "scrapy_ext.Scheduler"}
OUR_MIDDLEWARE = "scrapy_ext.middleware.BatchingMiddleware"
PLANNED = ("as planned", "Error downloading", "Gave up retrying")
"""What the log says of pages that fail."""
PASSING = "scripted_spider.PassingMiddleware"


@dataclass
class Case:
    """What a seed draws.

    Attributes:
        scheduler: "scrapy", "job" (with a JOBDIR), "ours" or "scrapy-redis".
        mark: BLOOMLOCK_MARK, "scheduled" where it has no effect.
        trouble: "none", "pause" of the server, "replies" that are lost, "kill" or "stop" of
            processes.
        moments: After how many requests to the site it comes, one after the other.
    """

    seed: int
    plan: Plan
    scheduler: str
    mark: str
    processes: int
    trouble: str
    policy: str
    moments: list[int]
    records_unfiltered: bool
    settings: dict[str, Any]
    chance: random.Random = field(repr=False)

    @property
    def claims(self) -> bool:
        return self.mark != "scheduled"

    @property
    def has_outage(self) -> bool:
        return self.trouble in {"pause", "replies"}

    @property
    def loses_nothing(self) -> bool:
        """Whether all has to be fetched in the end."""
        if not self.has_outage or self.scheduler == "ours" or self.policy == "allow":
            return True
        return self.policy == "close" and (self.claims or self.scheduler != "scrapy")

    def __str__(self) -> str:
        told = {key: value for key, value in vars(self).items() if key not in {"plan", "chance"}}
        kinds = Counter(page.kind for page in self.plan.pages)
        return f"{told}, depth {self.plan.depth}, {dict(kinds)}"


def draw(seed: int) -> Case:
    """Draw a case; the same for the same seed."""
    plan = make_plan(random.Random(f"site {seed}"))
    chance = random.Random(f"case {seed}")
    scheduler = chance.choices(["scrapy", "job", "ours", "scrapy-redis"], [4, 2, 4, 2])[0]
    mark = "scheduled"
    if scheduler in {"scrapy", "job"}:
        mark = chance.choices(["scheduled", "downloaded", "processed"], [2, 2, 3])[0]
    troubles = ["none", "none", "pause", "replies"]
    if mark != "scheduled" or scheduler == "ours":
        troubles += ["kill"] * 3
    if mark != "scheduled" or scheduler != "scrapy":
        troubles += ["stop"] * 2
    trouble = chance.choice(troubles)
    policy = "allow"
    if trouble in {"pause", "replies"}:
        policy = chance.choice(["allow", "allow", "drop", "close"])
    records_unfiltered = chance.random() < 0.5
    case = Case(
        seed=seed,
        plan=plan,
        scheduler=scheduler,
        mark=mark,
        processes=chance.choice([1, 1, 1, 2, 3]),
        trouble=trouble,
        policy=policy,
        moments=sorted(chance.randint(1, len(plan.pages)) for _ in range(chance.randint(1, 3))),
        records_unfiltered=records_unfiltered,
        settings={},
        chance=chance,
    )
    case.settings = draw_settings(chance, case)
    return case


def draw_settings(chance: random.Random, case: Case) -> dict[str, Any]:
    """Draw the settings of a case but those that name servers and files."""
    concurrent = chance.choice([1, 2, 4, 16])
    settings: dict[str, Any] = {
        "BLOOMLOCK_CAPACITY": 10_000,
        # So none is refused by chance.
        "BLOOMLOCK_ERROR_RATE": 1e-9,
        "BLOOMLOCK_LEASE": LEASE,
        "BLOOMLOCK_RECORD_UNFILTERED": case.records_unfiltered,
        "BLOOMLOCK_ON_OUTAGE": case.policy,
        # A slow machine is no outage.
        "BLOOMLOCK_TIMEOUT": 1 if case.trouble == "pause" else 60,
        "CONCURRENT_REQUESTS": concurrent,
        "CONCURRENT_REQUESTS_PER_DOMAIN": chance.choice([concurrent, 16]),
        "CONCURRENT_ITEMS": chance.choice([1, 100]),
        "DOWNLOAD_TIMEOUT": 2 * PATIENCE,
        "RETRY_TIMES": RETRY_TIMES,
        "RETRY_PRIORITY_ADJUST": chance.choice([-1, 5]),
        "DEPTH_LIMIT": case.plan.depth,
        "DEPTH_PRIORITY": chance.choice([0, 1]),
        "ITEM_PIPELINES": {"scripted_spider.ScriptedPipeline": 1},
        "DOWNLOADER_MIDDLEWARES": {"scripted_spider.IgnoringMiddleware": 300},
        "SPIDER_MIDDLEWARES": {},
        "DUPEFILTER_DEBUG": chance.random() < 0.3,
        **chance.choice(FILTERS),
    }
    if "BLOOMLOCK_WINDOW" not in settings and chance.random() < 0.4:
        settings["BLOOMLOCK_NEAR_CACHE"] = chance.choice([0, 0, 5])
    if chance.random() < 0.15:
        settings["TWISTED_REACTOR"] = "twisted.internet.selectreactor.SelectReactor"
    batches = chance.choice(["on", "on", "off", "left"])
    middlewares = settings["SPIDER_MIDDLEWARES"]
    if batches == "off":
        middlewares[OUR_MIDDLEWARE] = None
    if batches == "left":
        middlewares[PASSING] = 5
    if case.scheduler == "ours":
        settings["BLOOMLOCK_MARK"] = chance.choice(["scheduled", "processed"])
        queues = ["PriorityQueue", "FifoQueue", "LifoQueue"]
        settings["SCHEDULER_QUEUE_CLASS"] = f"scrapy_redis.queue.{chance.choice(queues)}"
        settings |= chance.choice([OURS, {**OURS, **ADDON}, {**SCRAPY_REDIS, **ADDON}])
    elif case.scheduler == "scrapy-redis":
        if batches != "off":
            middlewares[OUR_MIDDLEWARE] = 10
        settings |= SCRAPY_REDIS
    else:
        settings["BLOOMLOCK_MARK"] = case.mark
        settings |= ADDON
    return settings


@pytest.fixture(scope="module")
def filter_server() -> Iterator[PrivateServer]:
    """The server of the filter, which cases pause."""
    with PrivateServer() as server:
        yield server


@dataclass
class Ended:
    """A process that has ended.

    Attributes:
        stats: None if it was killed.
    """

    status: int
    stats: dict[str, Any] | None
    log: str


class Trial:
    """Carries a case out."""

    def __init__(
        self,
        case: Case,
        site: SiteServer,
        server: PrivateServer,
        queue_url: str,
        folder: Path,
        run_spider: Callable[[dict[str, Any]], Spider],
        stack: contextlib.ExitStack,
    ) -> None:
        self.case = case
        self.site = site
        self.server = server
        self.client = stack.enter_context(redis.Redis.from_url(server.url))
        self.queue = stack.enter_context(redis.Redis.from_url(queue_url))
        for one in (self.client, self.queue):
            one.flushall()
        self.folder = folder
        self.run_spider = run_spider
        self.runs: list[list[Ended]] = []
        self.starts = 0
        self.started: list[Spider] = []
        self.running: dict[int, Spider] = {}
        self.moments = [*case.moments]
        self.first = 0
        self.lock = threading.Lock()
        self.timers: list[threading.Timer] = []
        self.is_quiet = self.is_begun = False
        url = server.url
        if case.trouble == "replies":
            self.proxy = stack.enter_context(Proxy(server.url, self._judge))
            url = self.proxy.url
        ours = "REDIS_URL" if case.scheduler == "ours" else "BLOOMLOCK_URL"
        # What scrapy-redis does without its own server is its own.
        self.urls = {"REDIS_URL": queue_url, ours: url}
        self.rate = case.chance.choice([0.03, 0.15])
        self.pause_s = [case.chance.choice([0.2, 1.5, 3.0]) for _ in self.moments]
        self.pages = case.chance.randint(1, len(case.plan.pages) // 2)
        self.way = case.chance.choice(["SIGTERM", "SIGTERM", "CLOSESPIDER_PAGECOUNT"])
        stack.callback(self._end)

    # What befalls it.

    def _judge(self, name: str, number: int) -> Verdict:
        del name, number
        # A crawl does not start without its server.
        if not self.is_begun or self.is_quiet or self.proxy.lost > MOST_LOST:
            return "pass"
        with self.lock:
            drawn = self.case.chance.random()
        return "before" if drawn < self.rate / 2 else "after" if drawn < self.rate else "pass"

    def _on_request(self, count: int) -> None:
        with self.lock:
            if self.is_quiet or not self.moments or count - self.first < self.moments[0]:
                return
            self.moments.pop(0)
            self._befall()

    def _befall(self) -> None:
        trouble = self.case.trouble
        if trouble == "pause":
            os.kill(self.server.pid, signal.SIGSTOP)
            timer = threading.Timer(self.pause_s.pop(0), self._resume)
            self.timers.append(timer)
            timer.start()
        elif trouble in {"kill", "stop"} and self.running:
            number = self.case.chance.choice([*self.running])
            sent = signal.SIGKILL if trouble == "kill" else signal.SIGTERM
            if trouble == "kill" or self.way == "SIGTERM":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.running[number].pid, sent)
                    # A second one would end it at once.
                    del self.running[number]

    def _resume(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def _end(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self._resume()

    # Runs.

    def run(self, *, quiet: bool) -> None:
        """Run all processes until none is left, each again if it was killed."""
        case = self.case
        self.is_quiet, self.is_begun = quiet, False
        self.first = len(self.site.asked)
        opened = self.notes()["open", 0]
        gate = threading.Event()

        def on_request(count: int) -> None:
            gate.wait(PATIENCE)
            self._on_request(count)

        self.site.on_request = on_request
        spiders = [(number, self._start(number, quiet)) for number in range(case.processes)]
        try:
            wait_until(
                lambda: (
                    self.notes()["open", 0] >= opened + case.processes
                    or not all(one.is_running for _, one in spiders)
                ),
                PATIENCE,
            )
        finally:
            self.is_begun = True
            gate.set()
        ended = []
        while spiders:
            wait_until(lambda: not all(one.is_running for _, one in spiders), PATIENCE)
            number, spider = spiders.pop([one.is_running for _, one in spiders].index(False))
            one = self._finish(spider)
            ended.append(one)
            with self.lock:
                if self.running.get(number) is spider:
                    del self.running[number]
            if one.status == -signal.SIGKILL:
                self._end_leases()
                spiders.append((number, self._start(number, quiet)))
        self.runs.append(ended)

    def _start(self, number: int, quiet: bool) -> Spider:
        case = self.case
        settings = {**case.settings, **self.urls, "NOTES": str(self.folder / "notes")}
        if case.scheduler == "job":
            settings["JOBDIR"] = str(self.folder / f"job {number}")
        if case.trouble == "stop" and self.way == "CLOSESPIDER_PAGECOUNT" and not quiet:
            settings["CLOSESPIDER_PAGECOUNT"] = self.pages
        spider = self.run_spider(
            {
                "name": "spider",
                "spider": "ScriptedSpider",
                "start": f"{self.site.url}/0?a=1&b=2",
                "settings": settings,
            }
        )
        self.starts += 1
        self.started.append(spider)
        with self.lock:
            self.running[number] = spider
        return spider

    def _finish(self, spider: Spider) -> Ended:
        out, log = spider.communicate(PATIENCE)
        stats = json.loads(out)["stats"] if out else None
        assert spider.returncode is not None
        ended = Ended(spider.returncode, stats, log)
        (self.folder / f"log {self.starts} {spider.pid}").write_text(log)
        return ended

    def show_open(self) -> None:
        """Print what is open, where a crawl comes to no end."""
        self._resume()
        if self.case.claims:
            with self.open_filter() as shared:
                for claim in shared.open_claims():
                    print("open:", claim)
        print({number: spider.pid for number, spider in self.running.items()})

    def open_filter(self) -> BloomFilter:
        key = self.case.settings.get("BLOOMLOCK_KEY")
        return BloomFilter.open(NAME, client=self.server.url, key=key)

    def end_all(self) -> None:
        """Leave no process behind, if the trial came to no end."""
        self._resume()
        for spider in self.started:
            with contextlib.suppress(ProcessLookupError):
                if spider.returncode is None:
                    os.kill(spider.pid, signal.SIGKILL)
        for spider in self.started:
            if spider.returncode is None:
                self._finish(spider)

    def _end_leases(self) -> None:
        """Let all leases be over, as if their time had passed."""
        let_expire(self.client)
        for key in self.client.scan_iter(match="*:requests:workers"):
            self.client.zadd(key, dict.fromkeys(self.client.zrange(key, 0, -1), 1))

    def notes(self) -> Counter[tuple[str, int]]:
        """What the processes noted of their pages."""
        file = self.folder / "notes"
        if not file.exists():
            return Counter()
        noted = (line.split() for line in file.read_text().splitlines())
        return Counter((what, int(page)) for what, page in noted)

    @property
    def has_ended_early(self) -> bool:
        reasons = [one.stats["finish_reason"] for one in self.runs[-1] if one.stats]
        return any(reason != "finished" for reason in reasons)

    def carry_out(self) -> None:
        """Run it, and run it again until all that is to be done is done."""
        self.run(quiet=False)
        while self.moments and self.has_ended_early and len(self.runs) < MOST_RUNS:
            self._end_leases_after_close()
            self.run(quiet=self.way != "SIGTERM" or self.case.has_outage)
        while self.has_ended_early or self.may_go_on():
            assert len(self.runs) < MOST_RUNS, "it comes to no end"
            self._end_leases_after_close()
            self.run(quiet=True)

    def _end_leases_after_close(self) -> None:
        """What could not be handed over while the server was away is free after the lease."""
        if self.case.has_outage and self.case.policy == "close":
            self._end_leases()

    def may_go_on(self) -> bool:
        """Whether the next start tries again what fails once."""
        case = self.case
        once = {page.number for page in case.plan.pages if page.kind == "raises once"}
        if case.mark != "processed":
            return False
        done = {page for what, page in self.notes() if what == "done"}
        return bool((once & {*self.site.asked}) - done)


# What has to hold.


def check(trial: Trial) -> None:
    """Compare what was fetched with what must be, and look for what must not be there."""
    case, site = trial.case, trial.site
    ended = [one for run in trial.runs for one in run]
    for one in ended:
        if one.status == -signal.SIGTERM:
            # It was at its end, where Scrapy handles no signals any more.
            assert case.trouble == "stop"
            assert "Spider closed" in one.log, one.log
        elif one.status != -signal.SIGKILL:
            assert one.status == 0, one.log
            check_log(case, one)
    full = case.mark == "processed"
    model = partial(
        expected,
        case.plan,
        records_start=case.records_unfiltered or case.scheduler == "ours",
        records_unfiltered=case.records_unfiltered,
    )
    starts = 1 if case.scheduler == "ours" else case.processes
    must = model(starts=starts, full=full)
    may = model(starts=max(trial.starts, starts), full=True)
    asked, notes = Counter(site.asked), trial.notes()
    assert {*asked} <= {*may.asked}
    if case.loses_nothing:
        check_nothing_is_lost(trial, must, asked, notes)
    may_repeat = case.has_outage and case.processes > 1
    if case.trouble != "kill" and not may_repeat:
        check_nothing_is_fetched_twice(trial, may, asked)
    check_stats(trial, must)
    check_nothing_is_left(trial)


def check_log(case: Case, one: Ended) -> None:
    """Look for errors that nobody planned."""
    records = re.split(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )", one.log, flags=re.MULTILINE)
    for record in records:
        is_planned = any(said in record for said in PLANNED)
        assert is_planned or "Traceback" not in record, record
        is_of_outage = case.has_outage and "[bloomlock.scrapy]" in record
        for bad in (" ERROR: ", " CRITICAL: ", "was never awaited", "was destroyed but"):
            assert is_planned or is_of_outage or bad not in record, record


def check_nothing_is_lost(
    trial: Trial, must: Expected, asked: Counter[int], notes: Counter[tuple[str, int]]
) -> None:
    case, pages = trial.case, trial.case.plan.pages
    is_exact = case.trouble == "none" or (case.has_outage and case.policy == "allow")
    # Without a claim it is lost with the memory of its process.
    forgets = case.claims and not is_exact and (case.scheduler != "job" or case.trouble == "kill")
    forgotten = {
        page for page, ways in must.ways.items() if forgets and not ways["plain"] + ways["filter"]
    }
    if not is_exact:
        # A page of a circle that had its first answer when the process ended leads there no more.
        forgotten |= {one.to for one in pages if one.kind == "circle"}
    wanted: dict[tuple[str, int], int] = {}
    for what, ranges in (("asked", must.asked), ("done", must.done)):
        for page, times in ranges.items():
            # The queue of scrapy-redis is a set: of equal requests that wait it has one. From that
            # of a JOBDIR a forced request comes with the claim of another one of the same page.
            is_set = case.scheduler == "scrapy-redis"
            is_set |= case.scheduler == "job" and case.claims
            is_once = not is_exact or (is_set and page in must.ways)
            wanted[what, page] = min(times.least, 1) if is_once else times.least
    for page in must.asked:
        if pages[page].kind in {"broken", "gone", "missing"} and pages[page].if_failed is not None:
            wanted["failed", page] = 1
    # A page is recorded without its items where that is all that is asked for.
    if not (case.mark == "downloaded" and case.trouble == "kill"):
        for page in must.done:
            wanted["item", page] = case.plan.items_of(pages[page], full=True)
    found = Counter({("asked", page): times for page, times in asked.items()}) + notes
    lost = {
        (what, page, pages[page].kind): (found[what, page], least)
        for (what, page), least in wanted.items()
        if found[what, page] < least and page not in forgotten
    }
    assert not lost, f"lost (found, expected): {lost}"


def check_nothing_is_fetched_twice(trial: Trial, may: Expected, asked: Counter[int]) -> None:
    case = trial.case
    again = {}
    is_stopped = len(trial.runs) > 1 or any(
        one.stats and one.stats["finish_reason"] != "finished" for one in trial.runs[0]
    )
    for page, found in asked.items():
        one = case.plan.pages[page]
        most = may.asked[page].most
        # The claim of a redirect is open until what it leads to is done. A retry in the queue of a
        # JOBDIR has `dont_filter`, and comes out of it beside the claim.
        halves = {"redirect", "circle"} | ({"flaky", "cut"} if case.scheduler == "job" else set())
        is_begun = one.kind in halves and is_stopped and case.claims
        # Each start asks for the first page, beside one that was not done.
        is_first = page == 0 and is_stopped and case.claims
        # The process that failed filters it; others try it.
        if case.plan.is_tried_again(one) or is_begun or is_first or one.special:
            most *= trial.starts
        if found > most:
            again[page, one.kind] = found, most
    assert not again, f"fetched again (found, expected): {again}"


def check_stats(trial: Trial, must: Expected) -> None:
    case = trial.case
    if case.trouble != "none":
        return
    stats = [one.stats for one in trial.runs[0] if one.stats is not None]
    assert [one["finish_reason"] for one in stats] == ["finished"] * case.processes
    total: Counter[str] = Counter()
    for one in stats:
        total.update({key: value for key, value in one.items() if isinstance(value, int)})
    if not must.ways:
        assert total["scheduler/enqueued"] == total["scheduler/dequeued"]
    assert total["bloomlock/errors"] == total["bloomlock/outages"] == 0
    first = expected(
        case.plan,
        records_start=case.records_unfiltered or case.scheduler == "ours",
        records_unfiltered=case.records_unfiltered,
    )
    if first.offered is not None and (case.processes == 1 or case.scheduler == "ours"):
        # Of several processes all but one are refused the start page.
        more = case.processes - 1
        assert total["dupefilter/filtered"] == first.offered - first.accepted + more
    if case.claims:
        begun = total["bloomlock/claims/new"] + total["bloomlock/claims/taken_over"]
        ways = ("committed", "failed", "handed_over", "lost")
        assert begun == sum(total[f"bloomlock/claims/{way}"] for way in ways), total


def check_nothing_is_left(trial: Trial) -> None:
    case = trial.case
    if case.claims:
        with trial.open_filter() as shared:
            assert shared.count_claims().open == 0
    if case.scheduler == "ours":
        assert trial.client.keys("*spider:requests*") == []


def carry_out(
    case: Case,
    server: PrivateServer,
    queue_url: str,
    folder: Path,
    run_spider: Callable[[dict[str, Any]], Spider],
) -> Trial:
    """Carry a case out and check it."""
    print(f"seed {case.seed}: {case}")
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(SiteServer(case.plan))
        trial = Trial(case, site, server, queue_url, folder, run_spider, stack)
        try:
            trial.carry_out()
        except BaseException:
            trial.show_open()
            raise
        finally:
            trial.end_all()
        check(trial)
    crawls, requests = trial.starts, len(site.asked)
    print(f"  {crawls} processes, {requests} requests, {time.monotonic() - started:.1f} s")
    return trial


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Callable[[int], list[int]]:
    """Random seeds, or the one that is given by --seed."""
    given = request.config.getoption("--seed")
    return lambda count: [given] if given is not None else random.sample(range(10**9), count)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_whole_crawls_that_found_faults(
    seed: int,
    filter_server: PrivateServer,
    valkey: str,
    run_spider: Callable[[dict[str, Any]], Spider],
    tmp_path: Path,
) -> None:
    carry_out(draw(seed), filter_server, valkey, tmp_path, run_spider)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_many_whole_crawls(
    part: int,
    seeds: Callable[[int], list[int]],
    filter_server: PrivateServer,
    valkey: str,
    run_spider: Callable[[dict[str, Any]], Spider],
    tmp_path: Path,
) -> None:
    for seed in seeds(LONG_SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        carry_out(draw(seed), filter_server, valkey, folder, run_spider)
