"""Crawls with Scrapy: pages per second, what a kill -9 loses, and memory.

All crawl the same made-up site on this machine, one after the other in one process each, eight
requests at a time, in the order of the pages. A page has 185 links, of which 18 lead to pages that
no earlier page links to. A rate is counted from the first page to the last. "blocked" is the share
of that time for which the reactor stood in a blocking call, which is one of the filter's. "client
ms" is the processor time of the crawl, "server ms" that of the server, "reads" its round trips,
each for a page. "in memory" is Scrapy's own filter. All but those with another scheduler have
Scrapy's own, with a queue in memory. A slow one crawls fewer pages.

In the table of crashes a process is killed at some request, and another one is started with the
same settings; the queues are those that each has by default. "pages in the end" counts pages of
which an item went through the pipelines, "fetched twice" those that were requested more than once.

Memory is the MEMORY USAGE of all keys. A set has all fingerprints in it, 40 digits each. What it
takes depends on the server, so the redis-server of this machine, if it has one, is measured too.
"""

from __future__ import annotations

import itertools
import random
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, crawl_rig, show
from benchmarks.contenders import Entry
from benchmarks.crawl_job import CrawlJob
from benchmarks.crawl_site import Shape, Site
from benchmarks.delay_proxy import delayed
from benchmarks.figures import ratios, summarize
from benchmarks.place import Meter, Place, connect, forget, serving, sort_out
from benchmarks.results import server_of
from benchmarks.tables import number

from . import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from benchmarks.options import Options

ABOUT = "crawls with Scrapy: pages per second, kill -9, memory"

_OURS = {"DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter"}
_BATCHING: dict[str, Any] = {
    **_OURS,
    "SPIDER_MIDDLEWARES": {"scrapy_ext.middleware.BatchingMiddleware": 10},
}
_UNCACHED = {"BLOOMLOCK_NEAR_CACHE": 0}
_SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}
_SCHEDULER = {"SCHEDULER": "scrapy_ext.Scheduler"}
_OUTCOMES = "scrapy_ext.outcomes.OutcomeMiddleware"
_MARKED = {
    **_OURS,
    "SPIDER_MIDDLEWARES": {**_BATCHING["SPIDER_MIDDLEWARES"], _OUTCOMES: 1},
    "DOWNLOADER_MIDDLEWARES": {_OUTCOMES: 1},
}
_DOWNLOADED = {**_MARKED, "BLOOMLOCK_MARK": "downloaded"}
_PROCESSED = {**_MARKED, "BLOOMLOCK_MARK": "processed"}
_NEEDS_SCHEDULER = "package:scrapy_ext.scheduler"
_NEEDS_MARK = "package:scrapy_ext.outcomes"
_SCRAPY_BLOOM = {"DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter"}
_NEEDS_BLOOM = "package:scrapy_redis_bloomfilter"


def _entry(name: str, title: str, settings: dict[str, Any], **more: Any) -> Entry:
    """Return a contender: its options are settings of Scrapy."""
    return Entry(name, title, "", settings, **more)


IN_MEMORY = _entry("in-memory", "in memory", {})
RATED = (
    IN_MEMORY,
    _entry("batching", "bloomlock", _BATCHING),
    _entry("downloaded", "bloomlock, mark downloaded", _DOWNLOADED, needs=_NEEDS_MARK),
    _entry("processed", "bloomlock, mark processed", _PROCESSED, needs=_NEEDS_MARK),
    _entry("batching-uncached", "bloomlock, no near-cache", {**_BATCHING, **_UNCACHED}),
    _entry("dupefilter", "bloomlock, not batching", _OURS),
    _entry(
        "dupefilter-uncached",
        "bloomlock, not batching, no near-cache",
        {**_OURS, **_UNCACHED},
        slow=4,
    ),
    _entry(
        "scrapy-redis-set",
        "scrapy-redis's set",
        {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
        slow=4,
    ),
    _entry(
        "scrapy-redis-bloom",
        "scrapy-redis-bloomfilter",
        _SCRAPY_BLOOM,
        needs=_NEEDS_BLOOM,
        slow=10,
    ),
    _entry("scheduler", "bloomlock's scheduler", _SCHEDULER, needs=_NEEDS_SCHEDULER),
    _entry("scrapy-redis-scheduler", "scrapy-redis's scheduler and set", _SCRAPY_REDIS, slow=4),
)
_JOBDIR = {"JOBDIR": "job"}
_SOON = {"BLOOMLOCK_LEASE": 5}  # The process that is started again waits for no more.
_SQLITE = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoSQLiteQueue"}
CRASHED = (
    _entry("memory-crash", "in memory, Scrapy's filter", {}),
    _entry("jobdir", "JOBDIR, Scrapy's filter", _JOBDIR),
    _entry("jobdir-dupefilter", "JOBDIR, bloomlock, scheduled", {**_JOBDIR, **_OURS}),
    _entry(
        "jobdir-sqlite-dupefilter",
        "JOBDIR in SQLite, bloomlock, scheduled",
        {**_JOBDIR, **_SQLITE, **_OURS},
    ),
    _entry(
        "downloaded-crash", "bloomlock, mark downloaded", _DOWNLOADED | _SOON, needs=_NEEDS_MARK
    ),
    _entry("processed-crash", "bloomlock, mark processed", _PROCESSED | _SOON, needs=_NEEDS_MARK),
    _entry(
        "jobdir-processed",
        "JOBDIR, bloomlock, mark processed",
        {**_JOBDIR, **_PROCESSED, **_SOON, "SCHEDULER": "scrapy_ext.outcomes.JobScheduler"},
        needs=_NEEDS_MARK,
    ),
    _entry("scheduler-crash", "bloomlock's scheduler", _SCHEDULER | _SOON, needs=_NEEDS_SCHEDULER),
    _entry("scrapy-redis", "scrapy-redis", _SCRAPY_REDIS),
    _entry(
        "scrapy-redis-dupefilter", "scrapy-redis, bloomlock's filter", {**_SCRAPY_REDIS, **_OURS}
    ),
    _entry(
        "scrapy-redis-bloom-crash",
        "scrapy-redis-bloomfilter",
        {
            **_SCRAPY_REDIS,
            **_SCRAPY_BLOOM,
            "SCHEDULER": "scrapy_redis_bloomfilter.scheduler.Scheduler",
        },
        needs=_NEEDS_BLOOM,
    ),
)
KEPT = (
    Entry("filter", "bloomlock", "ours.Shared"),
    Entry("filter-memory", 'bloomlock, "memory"', "ours.Shared", {"optimize": "memory"}),
    contenders.SCRAPY_BLOOM,
    contenders.SADD,
)
ENTRIES = (*RATED, *CRASHED, *KEPT)

LINKS = Shape(links=185, new=18)
IN_ORDER = {
    "DEPTH_PRIORITY": 1,
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
}
"""Settings of a crawl that takes the pages in the order of their numbers."""
PAGES = 200
LINKS_MS = (0.0, 0.5, 1.0)
CRASH = Shape(links=12, new=4, pages=61, seconds=0.02)
KILLS = (4, 10, 16, 25, 40, 58)
"""The requests at which a process is killed."""
FINGERPRINTS = 10_000_000


@dataclass(slots=True)
class RateRow:
    """All crawls of one contender over one link; lists have a figure for each.

    Attributes:
        contender: Its name.
        title: Its title.
        round_trip_ms: Of the link.
        rates: Pages per second.
        blocked: Share of the time for which the reactor stood in a blocking call.
        client: Milliseconds of the crawl's processor time for a page.
        server: Milliseconds of the server's processor time for a page.
        round_trips: For a page.
        twice: Pages that were fetched more than once.
    """

    contender: str
    title: str
    round_trip_ms: float
    rates: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    round_trips: list[float] = field(default_factory=list)
    twice: int = 0


@dataclass(slots=True)
class CrashRow:
    """All crawls of one contender that were killed; lists have a figure for each.

    Attributes:
        contender: Its name.
        title: Its title.
        killed: At which request.
        missing: Pages whose items were never processed.
        twice: Pages that were fetched more than once.
        processed_twice: Pages whose items were processed more than once.
    """

    contender: str
    title: str
    killed: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    processed_twice: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Where all crawls run: a client of the server, its URL, and the start of all keys."""

    client: Any
    url: str
    prefix: str
    repetitions: int
    step: Callable[[str], None]

    def forget(self) -> None:
        """Delete the keys of a crawl; a filter's keys start with a word of its own."""
        forget(self.client, f"*{self.prefix}")


def run(options: Options, url: str, prefix: str) -> dict[str, Any]:
    """Measure all of it; return what was measured as plain data."""
    parts: list[list[Entry]] = []
    missing: list[dict[str, str]] = []
    for entries in (RATED, CRASHED, KEPT):
        there, absent = sort_out(contenders.choose(entries, options.contenders), url)
        parts.append(there)
        missing += absent
    rated, crashed, kept = parts
    pages = options.items or (60 if options.quick else PAGES)
    kills = KILLS[::3] if options.quick else KILLS
    repetitions = options.slices(5, 1)
    steps = len(LINKS_MS) * repetitions * len(rated) + len(kills) * len(crashed) + len(kept)
    other = shutil.which("redis-server")
    steps += len(kept) * (other is not None)
    with connect(url) as client, show.progress(steps) as step:
        bench = _Bench(client, url, prefix, repetitions, step)
        rates = [row for trip_ms in LINKS_MS for row in _rates(bench, rated, trip_ms, pages)]
        crashes = _crashes(bench, crashed, kills)
        sizes = [_memory(bench, kept)]
        if kept and other is not None:
            with _served_by(Path(other), bench) as elsewhere:
                sizes.append(_memory(elsewhere, kept))
    return {
        "missing": missing,
        "pages": pages,
        "rates": [asdict(row) for row in rates],
        "crashes": [asdict(row) for row in crashes],
        "memory": sizes,
    }


def _rates(bench: _Bench, entries: list[Entry], trip_ms: float, pages: int) -> list[RateRow]:
    rows = {entry: RateRow(entry.name, entry.title, trip_ms) for entry in entries}
    order, meter = random.Random(0), Meter(bench.client)
    if not entries:
        return []
    with delayed(bench.url, trip_ms) as through, Site(LINKS) as site:
        for _ in range(bench.repetitions):
            for entry in order.sample(entries, len(entries)):
                bench.step(f"{trip_ms:g} ms {entry.title}")
                site.forget()
                settings = crawl_rig.settings_of(entry, through, bench.prefix)
                job = CrawlJob(site.start, IN_ORDER | settings, max(2, pages // entry.slow))
                meter.start()
                done = crawl_rig.run(entry, job)
                cost, row = meter.stop(), rows[entry]
                row.rates.append(round(done.pages / done.seconds, 2))
                row.blocked.append(round(done.blocked / done.seconds, 4))
                row.client.append(round(1e3 * done.cpu / done.pages, 2))
                row.server.append(round(1e3 * cost.busy / done.followed, 3))
                row.round_trips.append(round(cost.round_trips / done.followed, 2))
                row.twice += len(site.served) - len(set(site.served))
                bench.forget()
    return list(rows.values())


def _crashes(bench: _Bench, entries: list[Entry], kills: Sequence[int]) -> list[CrashRow]:
    rows = {entry: CrashRow(entry.name, entry.title) for entry in entries}
    with Site(CRASH) as site:
        for kill_at, entry in itertools.product(kills, entries):
            bench.step(f"killed at {kill_at} {entry.title}")
            settings = crawl_rig.settings_of(entry, bench.url, bench.prefix)
            job = CrawlJob(site.start, settings)
            ending = crawl_rig.run_killed(entry, job, site, kill_at)
            row = rows[entry]
            row.killed.append(kill_at)
            row.missing.append(ending.missing)
            row.twice.append(ending.twice)
            row.processed_twice.append(ending.processed_twice)
            bench.forget()
    return list(rows.values())


@contextmanager
def _served_by(program: Path, bench: _Bench) -> Iterator[_Bench]:
    """Provide the same bench at a throw-away server of another program."""
    with serving(None, program=program) as (url, prefix), connect(url) as client:
        yield replace(bench, client=client, url=url, prefix=prefix)


def _memory(bench: _Bench, entries: list[Entry]) -> dict[str, Any]:
    rows = []
    for entry in entries:
        bench.step(f"memory {entry.title}")
        place = Place(bench.url, f"{bench.prefix}m:", entry.name, FINGERPRINTS, memory.RATES[0])
        rows.append(asdict(memory.row_of(bench.client, entry, place)))
        forget(bench.client, place.prefix)
    return {"server": server_of(bench.client), "rows": rows}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Make a table for each link, and those of crashes and of memory."""
    rates = [RateRow(**row) for row in result["rates"]]
    for trip_ms in dict.fromkeys(row.round_trip_ms for row in rates):
        rows = [row for row in rates if row.round_trip_ms == trip_ms]
        yield _rate_table(rows, trip_ms, result)
    if result["crashes"]:
        yield _crash_table([CrashRow(**row) for row in result["crashes"]])
    for found in result["memory"]:
        if found["rows"]:
            yield _memory_table([memory.Row(**row) for row in found["rows"]], found["server"])


def _rate_table(rows: list[RateRow], trip_ms: float, result: dict[str, Any]) -> Table:
    base = next((row for row in rows if row.contender == IN_MEMORY.name), None)
    lines = [
        [
            row.title,
            f"{summarize(row.rates).median:.1f}",
            show.ratio(ratios(row.rates, base.rates)) if base else "",
            f"{summarize(row.blocked).median:.1%}",
            *(
                number(summarize(figures).median)
                for figures in (row.client, row.server, row.round_trips)
            ),
            f"{row.twice}",
        ]
        for row in rows
    ]
    columns = [
        "",
        "pages/s",
        "/ in memory",
        "blocked",
        "client ms",
        "server ms",
        "reads",
        "fetched twice",
    ]
    names = {entry.name for entry in RATED}
    absent = [
        [each["title"], "not available", *[""] * (len(columns) - 2)]
        for each in result["missing"]
        if each["contender"] in names
    ]
    link = f"round trip {trip_ms:g} ms" if trip_ms else "unix socket"
    title = f"crawls of {result['pages']} pages, {LINKS.links} links a page, {link}"
    return show.table(title, columns, lines + absent)


def _crash_table(rows: list[CrashRow]) -> Table:
    at = ", ".join(map(str, rows[0].killed))
    return show.table(
        f"{CRASH.pages} pages, killed with -9 at request {at} and started again",
        ["", "pages in the end", "at worst", "fetched twice", "at worst", "items twice"],
        (
            [
                row.title,
                f"{(CRASH.pages or 0) - summarize(row.missing).median:g} of {CRASH.pages}",
                f"{(CRASH.pages or 0) - max(row.missing)}",
                f"{summarize(row.twice).median:g}",
                f"{max(row.twice)}",
                f"{summarize(row.processed_twice).median:g}",
            ]
            for row in rows
        ),
    )


def _memory_table(rows: list[memory.Row], server: str) -> Table:
    base = next((row for row in rows if row.error_rate is None), None)
    return show.table(
        f"memory of {rows[0].capacity:,} fingerprints at {memory.RATES[0]:g} on {server}",
        ["", "MB", "bytes each", "scrapy-redis's set / it"],
        (
            [
                row.title,
                f"{row.bits * row.capacity / 8e6:,.1f}",
                f"{row.bits / 8:.2f}",
                f"{base.bits / row.bits:.1f}" if base else "",
            ]
            for row in rows
        ),
    )
