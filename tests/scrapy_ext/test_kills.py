"""kill -9 at random moments, again and again: no page is lost, and which are fetched twice."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from claim_tools import let_expire
from servers import wait_until

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.scrapy_ext.conftest import Crawl, Site

CONCURRENT = 4
MOST_ANSWERS = 12
"""Pages that a process gets before it is killed."""
PAGES_PER_PROCESS = MOST_ANSWERS + 3 * CONCURRENT
"""So none comes to the end of the site before it is killed."""
PATIENCE = 300.0
MARKED = {
    "ADDONS": {"scrapy_ext.BloomlockAddon": 500},
    "SPIDER_MIDDLEWARES": {},
    "BLOOMLOCK_RECORD_UNFILTERED": True,
}
SET_UPS: dict[str, dict[str, Any]] = {
    "downloaded": {**MARKED, "BLOOMLOCK_MARK": "downloaded"},
    "processed": {**MARKED, "BLOOMLOCK_MARK": "processed"},
    "JOBDIR": {**MARKED, "BLOOMLOCK_MARK": "processed"},
    "scheduler": {"SCHEDULER": "scrapy_ext.Scheduler"},
}
LEASE = 600.0


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    shared = {
        "BLOOMLOCK_CAPACITY": 100_000,
        "BLOOMLOCK_LEASE": LEASE,
        "CONCURRENT_REQUESTS": CONCURRENT,
        # What is held is no failure.
        "DOWNLOAD_TIMEOUT": 2 * PATIENCE,
        "NOTES": str(folder / "notes"),
    }
    if name == "JOBDIR":
        shared["JOBDIR"] = str(folder / "job")
    return {"spider": "NotingSpider", **shared, **SET_UPS[name]}


def open_pages(r: redis.Redis) -> set[str]:
    """The pages that wait or are fetched, as the server has them."""
    if r.exists("spider:requests:workers"):
        kept = [*r.hvals("spider:requests:taken"), *r.zrange("spider:requests", 0, -1)]
    elif r.exists("bloomlock:{spider:dupefilter}:bits"):
        with BloomFilter.open("spider:dupefilter", client=r) as shared:
            kept = [claim.payload for claim in shared.open_claims()]
    else:
        kept = []
    found = [re.findall(rb"http://127\.0\.0\.1:\d+(/\d+)", request) for request in kept]
    return {paths[0].decode() for paths in found}


def end_leases(r: redis.Redis) -> None:
    """Let all leases be over, as if their time had passed."""
    let_expire(r)
    workers = "spider:requests:workers"
    if names := r.zrange(workers, 0, -1):
        r.zadd(workers, dict.fromkeys(names, 1))


class Notes:
    """What the processes note of their pages; see NotingSpider."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = 0

    def begin(self) -> None:
        """Let the next process begin."""
        self._start = len(self._lines())

    def of_process(self, what: str) -> set[str]:
        """The pages that the last process has asked for, or done."""
        return {*self._pages(what, self._start)}

    def of_all(self, what: str) -> Counter[str]:
        return Counter(self._pages(what, 0))

    def _pages(self, what: str, start: int) -> list[str]:
        return [page for noted, page in map(str.split, self._lines()[start:]) if noted == what]

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []


class Gate:
    """Lets processes have some more pages, and holds all that they ask for after them."""

    def __init__(self, site: Site, answers: int) -> None:
        self._last = len(site.requested) + answers
        self.is_reached = threading.Event()
        self._opened = threading.Event()
        self._site = site
        site.on_request = self._hold

    def _hold(self, count: int) -> None:
        if count > self._last:
            self.is_reached.set()
            self._opened.wait()

    @property
    def held(self) -> set[str]:
        return {*self._site.requested[self._last :]}

    def open(self) -> None:
        self._site.on_request = None
        self._opened.set()


def kill(
    r: redis.Redis, crawl: Crawl, gate: Gate, notes: Notes, kind: str, chance: random.Random
) -> None:
    """Kill a process that waits for pages that are held, so that it cannot have ended."""
    if kind == "early":
        time.sleep(chance.random())
    else:
        wait_until(lambda: gate.is_reached.is_set() or not crawl.process.is_running, PATIENCE)
        assert gate.is_reached.is_set(), crawl.finish().log
        time.sleep(0.03 * chance.random())
    if kind == "recorded":
        wait_until(
            lambda: notes.of_process("asked") & open_pages(r) <= gate.held, PATIENCE, "recorded"
        )
    os.kill(crawl.process.pid, signal.SIGKILL)
    crawl.finish()
    assert crawl.process.returncode == -signal.SIGKILL, crawl.log


def crawl_and_kill(
    r: redis.Redis,
    site: Site,
    start_spider: Callable[..., Crawl],
    settings: dict[str, Any],
    kinds: list[str],
    seed: int,
) -> None:
    chance = random.Random(seed)
    chance.shuffle(kinds)
    pages = PAGES_PER_PROCESS * len(kinds)
    # Only one page leads to a page, so one that is lost takes all below it along.
    site.links = lambda page: [
        *(0, page, (page - 1) // 2 if page else 0),
        *(child for child in (2 * page + 1, 2 * page + 2) if child < pages),
    ]
    in_memory = {
        *start_spider(DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter").finish().fetched
    }
    assert len(in_memory) == pages
    notes = Notes(Path(settings["NOTES"]))
    may_be_again: Counter[str] = Counter()
    for kind in kinds:
        notes.begin()
        answers = 0 if kind == "early" else chance.randint(1, MOST_ANSWERS)
        if kind == "stopped":
            stopped = start_spider(**settings, CLOSESPIDER_PAGECOUNT=answers).finish()
            assert stopped.stats["finish_reason"] == "closespider_pagecount", stopped.log
            assert not notes.of_process("asked") & open_pages(r)
            continue
        gate = Gate(site, answers)
        try:
            kill(r, start_spider(**settings), gate, notes, kind, chance)
        finally:
            gate.open()
        not_done = notes.of_process("asked") & open_pages(r)
        may_be_again.update(not_done)
        assert kind != "recorded" or len(not_done) <= CONCURRENT
        end_leases(r)
    last = start_spider(**settings).finish()
    assert last.stats["finish_reason"] == "finished", last.log
    asked, kills = notes.of_all("asked"), len(kinds) - kinds.count("stopped")
    again = asked - Counter({*asked})
    lost = in_memory - {*notes.of_all("done")}
    twice = f"{again.total()} fetched twice ({again['/0']} of them /0)"
    print(f"{kills} kills, {pages} pages, {len(lost)} lost, {twice}")
    assert not lost
    assert {*asked} == in_memory
    if "SCHEDULER" not in settings:
        # Each start asks for the first page, without the filter, beside one that was not done.
        may_be_again["/0"] += len(kinds)
    assert again <= may_be_again, again - may_be_again
    assert open_pages(r) == set()


def kinds_of(name: str, kinds: list[str]) -> list[str]:
    """What befalls the processes: our scheduler is asked nothing while all slots are in use."""
    return ["at once" if name == "scheduler" and kind == "recorded" else kind for kind in kinds]


@pytest.mark.parametrize("name", ["processed", "JOBDIR", "scheduler"])
def test_a_killed_crawl_loses_nothing(
    name: str,
    r: redis.Redis,
    site: Site,
    start_spider: Callable[..., Crawl],
    tmp_path: Path,
    seed: int,
) -> None:
    kinds = kinds_of(name, ["at once", "recorded", "early", "stopped"])
    crawl_and_kill(r, site, start_spider, settings_of(name, tmp_path), kinds, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SET_UPS)
def test_a_crawl_killed_a_hundred_times_loses_nothing(
    name: str,
    r: redis.Redis,
    site: Site,
    start_spider: Callable[..., Crawl],
    tmp_path: Path,
    seed: int,
) -> None:
    kinds = ["at once", "at once", "recorded", "early"] * 25 + ["stopped"] * 25
    kinds = kinds_of(name, kinds)
    crawl_and_kill(r, site, start_spider, settings_of(name, tmp_path), kinds, seed)
