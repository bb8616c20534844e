"""The main job: start the workers, watch them, stop them, add up what they wrote down."""

from __future__ import annotations

import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import redis.exceptions
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter, FilterNotFoundError
from scrapy_ext.crawl.frontier import Frontier
from scrapy_ext.crawl.site import Target, open_target
from scrapy_ext.crawl.spider import CrawlConfig
from scrapy_ext.crawl.stats import (
    CrawlStats,
    JournalReader,
    Progress,
    Rendering,
    Report,
    tolerated,
)
from scrapy_ext.crawl.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the user asked for; None means the default of the target. The command's help has each.

    `source` None is the pydoc pages, `name` None a filter of this run's own. After `stall_timeout`
    seconds without news from any worker the job is given up.
    """

    source: str | None = None
    workers: int = 4
    name: str | None = None
    capacity: int | None = None
    error_rate: float | None = None
    url: str | None = field(default=None, repr=False)  # it may hold a password
    strategy: str = "atomic"
    max_pages: int | None = None
    keep: bool | None = None
    robots: bool | None = None
    concurrency: int = 8
    delay: float = 0.0
    timeout: float = 20.0
    stall_timeout: float = 120.0


def run(
    options: JobOptions, on_progress: Callable[[Progress | Rendering], None] | None = None
) -> Report:
    """Crawl a site with several processes that share one filter and one queue.

    Blocks until every page is fetched, the page limit is reached, the workers have failed, or
    the user interrupts; in each case all processes have ended on return, and the keys the job
    made are deleted unless they are to be kept.
    """
    show = on_progress or (lambda _: None)
    with (
        Frontier.connect(options.url) as frontier,
        open_target(options.source, lambda done, total: show(Rendering(done, total))) as target,
    ):
        return _Job(options, target, frontier, show).run()


class _Job:
    """One run."""

    def __init__(
        self,
        options: JobOptions,
        target: Target,
        frontier: Frontier,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._options = options
        self._target = target
        self._frontier = frontier
        self._on_progress = on_progress
        self._stats = CrawlStats()
        self._report = Report(target.title, options.workers)
        self._name = options.name or f"crawl:{uuid.uuid4().hex[:12]}"
        self._keep = options.keep if options.keep is not None else options.name is not None

    def run(self) -> Report:
        """Crawl, then add up."""
        shared = self._filter()
        try:
            fresh = shared.count() == 0
            self._frontier.open_queue(self._name, self._options.workers)
            self._crawl(shared)
            self._add_up(shared, fresh=fresh)
        finally:
            self._clean_up(shared)
        return self._report

    def _clean_up(self, shared: BloomFilter) -> None:
        """Delete the keys of this run; a server that is gone by now is part of the report."""
        try:
            self._frontier.close_queue(keep=self._keep)
            if not self._keep:
                shared.delete()
        except redis.exceptions.RedisError as error:
            self._server_failed(error)

    def _server_failed(self, error: redis.exceptions.RedisError) -> None:
        sentence = f"the Redis server failed: {error}"
        if sentence not in self._report.failures:
            self._report.failures.append(sentence)

    def _filter(self) -> BloomFilter:
        """Attach to the filter of that name, or make one."""
        options, client = self._options, self._frontier.client
        if options.name is not None and options.capacity is None and options.error_rate is None:
            try:
                return BloomFilter.open(self._name, client=client, strategy=options.strategy)
            except FilterNotFoundError:
                pass
        return BloomFilter(
            self._name,
            self._target.capacity if options.capacity is None else options.capacity,
            1e-6 if options.error_rate is None else options.error_rate,
            client=client,
            strategy=options.strategy,
        )

    def _config(self, shared: BloomFilter) -> CrawlConfig:
        options, target = self._options, self._target
        return CrawlConfig(
            start=target.start,
            token=target.token,
            redis=self._frontier.url,
            filter_name=self._name,
            capacity=shared.capacity,
            error_rate=shared.error_rate,
            strategy=options.strategy,
            queue=self._frontier.queue,
            busy=self._frontier.busy,
            robots=target.remote if options.robots is None else options.robots,
            concurrency=options.concurrency,
            delay=options.delay,
            throttle=target.remote,
            timeout=options.timeout,
        )

    def _crawl(self, shared: BloomFilter) -> None:
        """Run the workers to the end, and read all they wrote."""
        config = self._config(shared)
        with tempfile.TemporaryDirectory(prefix="bloomlock-crawl-") as folder:
            config.save(Path(folder, "config.json"))
            started = time.monotonic()
            workers = Workers(Path(folder), self._options.workers, config.last_pages)
            reader = JournalReader(workers.journals)
            with workers:
                try:
                    self._watch(workers, reader)
                except KeyboardInterrupt:
                    self._report.interrupted = True
                except redis.exceptions.RedisError as error:
                    self._server_failed(error)
                self._report.seconds = time.monotonic() - started
                if not self._report.failures:
                    self._stop(workers)
                workers.kill()
            if self._report.interrupted:
                # Ctrl-C can strike between reading a line and adding it.
                self._stats, reader = CrawlStats(), JournalReader(workers.journals)
            reader.read_into(self._stats)
            self._report.failures += workers.failures()

    def _stop(self, workers: Workers) -> None:
        """Let the workers finish their pages; Ctrl-C (again) ends them at once."""
        try:
            workers.stop()
        except KeyboardInterrupt:
            self._report.interrupted = True
            workers.kill()

    def _watch(self, workers: Workers, reader: JournalReader) -> None:
        """Return when the crawl is over, for whatever reason."""
        limit = self._options.max_pages
        limit = self._target.max_pages if limit is None else limit
        last_news_at = time.monotonic()
        gone: set[int] = set()
        while True:
            if reader.read_into(self._stats):
                last_news_at = time.monotonic()
            running = workers.running()
            for number in set(range(self._options.workers)) - set(running) - gone:
                gone.add(number)
                self._frontier.leave_out(number)
            queued, over = self._frontier.state()
            self._on_progress(self._progress(workers, queued, len(running)))
            if over or not running or (limit and len(self._stats.fetched) >= limit):
                return
            if time.monotonic() - last_news_at > self._options.stall_timeout:
                seconds = f"{self._options.stall_timeout:g} s"
                self._report.failures.append(f"no worker has made progress for {seconds}; given up")
                return
            time.sleep(_LOOK_SECONDS)

    def _progress(self, workers: Workers, queued: int, running: int) -> Progress:
        stats = self._stats
        links, duplicates = sum(stats.links.values()), sum(stats.duplicates.values())
        return Progress(len(stats.fetched), links, duplicates, queued, running, workers.pids)

    def _look_at_start(self) -> None:
        """Report a start page that is not available, if no page is."""
        start, stats = self._target.start, self._stats
        key = fingerprint(Request(start)).hex()
        why = stats.failed.get(key) or stats.refused.get(key)
        if why and not stats.fetched:
            self._report.failures.append(f"the start page {start} could not be fetched: {why}")

    def _add_up(self, shared: BloomFilter, *, fresh: bool) -> None:
        """Fill in the report."""
        stats, report = self._stats, self._report
        report.pages = len(stats.fetched)
        report.links = sum(stats.links.values())
        report.duplicates = sum(stats.duplicates.values())
        report.distinct = len(stats.found)
        report.twice = sorted(stats.twice())
        report.refused = {stats.found.get(key, key): why for key, why in stats.refused.items()}
        report.failed = {stats.found.get(key, key): why for key, why in stats.failed.items()}
        report.filter_name = self._name
        report.filter_capacity = shared.capacity
        report.filter_error_rate = shared.error_rate
        report.tolerated = tolerated(len(stats.found), shared.error_rate)
        queued: set[str] = set()
        try:
            queued = self._frontier.queued_fingerprints()
            report.filter_bytes = shared.info().memory_bytes or None
            report.set_bytes = self._frontier.memory_of_exact_set(list(stats.found))
        except redis.exceptions.RedisError as error:
            self._server_failed(error)
        lost, never_new = stats.lost(queued), stats.never_new(queued)
        missed = lost | never_new if fresh else lost
        report.queued = len(queued)
        self._look_at_start()
        report.missed = sorted(stats.found[key] for key in missed)
        report.lost = len(lost)
        report.earlier = 0 if fresh else len(never_new)
