"""Crawls with Scrapy."""

from __future__ import annotations

import random
import signal
from collections import Counter
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import contenders as c
from benchmarks.crawl.site import Hosts, Shape, Site
from benchmarks.place import Meter, connect
from benchmarks.processes import LONGEST_WAIT, Worker
from benchmarks.proxies import delayed
from benchmarks.results import Row
from benchmarks.suite import Bench, Part, Suite
from benchmarks.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.contenders import Entry

_ADDON = {"ADDONS": {"scrapy_ext.BloomlockAddon": 500}}
_ALONE = {
    "DUPEFILTER_CLASS": "scrapy_ext.BloomDupeFilter",
    "SPIDER_MIDDLEWARES": {"scrapy_ext.BatchingMiddleware": 10},
}
_SET = {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"}
_SCRAPY_REDIS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True, **_SET}
_BLOOM = {"DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter"}
_JOBDIR = {"JOBDIR": "job"}


def _entry(name: str, title: str, settings: dict[str, Any], slow: int = 1) -> Entry:
    """Return a contender: its options are settings of Scrapy."""
    needs = "package:scrapy_redis_bloomfilter" if "bloomfilter" in name else ""
    return c.Entry(name, title, "", settings, needs=needs, slow=slow)


RATED = (
    _entry("in-memory", "in memory", {}),
    _entry("addon", "bloomlock, the add-on", _ADDON),
    _entry("dupefilter", "bloomlock, its filter alone", _ALONE),
    _entry("scrapy-redis-set", "scrapy-redis's set", _SET, 4),
    _entry("scrapy-redis", "scrapy-redis's scheduler and set", _SCRAPY_REDIS, 4),
    _entry("scrapy-redis-bloomfilter", "scrapy-redis-bloomfilter", _BLOOM, 10),
)
CRASHED = (
    _entry("in-memory", "in memory, Scrapy's filter", {}),
    _entry("jobdir", "JOBDIR, Scrapy's filter", _JOBDIR),
    _entry("addon", "bloomlock, the add-on", _ADDON),
    _entry("scrapy-redis", "scrapy-redis", _SCRAPY_REDIS),
)
LINKS = Shape(links=185, new=18)
IN_ORDER = {
    "DEPTH_PRIORITY": 1,
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
}
"""Settings of a crawl that takes the pages in the order of their numbers."""
LINKS_MS = (0.0, 0.5, 1.0)
CRASH = Shape(links=12, new=4, pages=61, seconds=0.02)
KILLS = (4, 10, 16, 25, 40, 58)
"""The requests at which a process is killed."""
HOSTS = 8
DELAY = {"DOWNLOAD_DELAY": 0.1, "DOWNLOAD_DELAY_JITTER": 0, "CONCURRENT_REQUESTS": 16}


def _start(entry: Entry, site: Site, folder: str, url: str, **more: object) -> Worker:
    """Start a process that crawls the site; a JOBDIR among the settings is in the folder."""
    # PLC0415: Scrapy is imported where a crawl is measured.
    from benchmarks.crawl.job import work  # noqa: PLC0415

    settings = {
        "REDIS_URL": url,
        "BLOOMLOCK_URL": url,
        "BLOOMLOCK_NAME": "filter",
        "BLOOMLOCK_FILTER": {"timeout": 30},  # A slow machine is no outage.
        "SCHEDULER_DUPEFILTER_KEY": "dupefilter",
        "SCHEDULER_QUEUE_KEY": "requests",
        **entry.options,
        **more,
    }
    if "JOBDIR" in settings:
        settings["JOBDIR"] = f"{folder}/job"
    return Worker(work, site.start, settings, folder)


def rates(bench: Bench) -> Iterator[Row]:
    """Let each crawl some pages, at each distance to the server."""
    entries = bench.choose(RATED)
    pages = bench.count(200, 60)
    if not entries:
        return
    order = random.Random(0)
    with connect(bench.url) as client, Site(LINKS) as site, TemporaryDirectory() as folder:
        meter = Meter(client)
        for trip_ms in LINKS_MS:
            link = f"round trip {trip_ms:g} ms" if trip_ms else "unix socket"
            title = f"crawls, {LINKS.links} links a page"
            rows = {entry: Row.of("rates", title, entry, link, ms=trip_ms) for entry in entries}
            with delayed(bench.url, trip_ms) as through:
                for _ in bench.slices(5, 1):
                    for entry in order.sample(entries, len(entries)):
                        site.served.clear()
                        meter.start()
                        limit = {"CLOSESPIDER_PAGECOUNT": max(2, pages // entry.slow)}
                        with _start(entry, site, folder, through, **IN_ORDER, **limit) as crawl:
                            done = crawl.hear()
                        cost = meter.stop(done["pages"])
                        twice = len(site.served) - len(set(site.served))
                        here = {name: cost[name] for name in ("server", "trips")}
                        rows[entry].note(**done, **here, twice=twice)
                        client.flushall()
            yield from rows.values()


def crashes(bench: Bench) -> Iterator[Row]:
    """Kill each crawl at some requests, start another in its place, and count the pages."""
    kills = KILLS[::3] if bench.quick else KILLS
    with connect(bench.url) as client, Site(CRASH) as site:
        for entry in bench.choose(CRASHED):
            row = Row.of("crashes", f"{CRASH.pages} pages, killed and started again", entry)
            for kill_at in kills:
                row.note(**_killed(entry, site, bench.url, kill_at))
                client.flushall()
            yield row


def _killed(entry: Entry, site: Site, url: str, kill_at: int) -> dict[str, int]:
    site.served.clear()
    with TemporaryDirectory() as folder:
        with _start(entry, site, folder, url) as first:
            site.on_request = lambda number: first.process.kill() if number == kill_at else None
            first.process.join(LONGEST_WAIT)
            site.on_request = lambda _number: None
            if first.process.exitcode != -signal.SIGKILL:
                raise RuntimeError(f"the crawl of {entry.name} was not killed")
        with _start(entry, site, folder, url) as second:
            second.hear()
        done = Counter((Path(folder) / "journal").read_text("ascii").split())
    return {
        "pages": len(done),
        "missing": (CRASH.pages or 0) - len(done),
        "twice": sum(count > 1 for count in Counter(site.served).values()),
        "items_twice": sum(count > 1 for count in done.values()),
    }


def delays(bench: Bench) -> Iterator[Row]:
    """Let processes fetch pages of hosts with a delay, and take the gaps between two of a host."""
    pages = bench.count(60, 5)
    title = f"{HOSTS} hosts, a delay of {DELAY['DOWNLOAD_DELAY']} s"
    with (
        connect(bench.url) as client,
        Hosts(HOSTS, pages) as site,
        TemporaryDirectory() as folder,
    ):
        for processes, contenders in ((1, RATED[:2]), (4, RATED[1:2])):
            entries = bench.choose(contenders)
            told = f"{processes} process{'es' if processes > 1 else ''}"
            rows = {entry: Row.of("delays", title, entry, told) for entry in entries}
            for _ in bench.slices(3, 1):
                for entry in entries:
                    site.times.clear()
                    with ExitStack() as stack:
                        crawls = [
                            stack.enter_context(_start(entry, site, folder, bench.url, **DELAY))
                            for _ in range(processes)
                        ]
                        for crawl in crawls:
                            crawl.process.join(LONGEST_WAIT)
                    rows[entry].note(**_paced(site))
                    client.flushall()
            yield from rows.values()


def _paced(site: Hosts) -> dict[str, float]:
    times = sorted(chain(*site.times.values()))
    gaps = sorted(after - before for one in site.times.values() for before, after in pairwise(one))
    return {
        "rate": (len(times) - 1) / (times[-1] - times[0]),
        "gap": 1000 * gaps[len(gaps) // 2],
        "early_gap": 1000 * gaps[len(gaps) // 10],
    }


SUITE = Suite(
    "scrapy",
    "crawls with Scrapy: pages per second, kill -9, memory",
    (
        Part(
            "rates",
            rates,
            (
                Column("pages/s", "rate"),
                Column("/ in memory", "rate", "in-memory", "spread"),
                Column("client µs", "client"),
                Column("server µs", "server"),
                Column("round trips", "trips"),
                Column("reactor blocked", "blocked", form="percent"),
                Column("fetched twice", "twice", form="sum"),
            ),
        ),
        Part(
            "delays",
            delays,
            (
                Column("pages/s", "rate"),
                Column("/ in memory", "rate", "in-memory", "spread"),
                Column("gap of a host ms", "gap"),
                Column("a tenth below", "early_gap"),
            ),
        ),
        Part(
            "crashes",
            crashes,
            (
                Column("pages in the end", "pages"),
                Column("missing at worst", "missing", form="max"),
                Column("fetched twice", "twice"),
                Column("at worst", "twice", form="max"),
                Column("items twice", "items_twice"),
            ),
        ),
    ),
)
