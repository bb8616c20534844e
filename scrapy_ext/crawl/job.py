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

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter
from bloomlock.errors import ConfigurationError, FilterNotFoundError
from scrapy_ext.crawl.frontier import Frontier, QueueState
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
from scrapy_ext.crawl.workers import Workers, forget, forget_old, is_dead, new_workers

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the user asked for; None means the default of the target. The command's help has each.

    `source` None is the pydoc pages, `name` None a filter of this run's own. `restart` deletes the
    filter and the queue of that name first. After `stall_timeout` seconds without news from any
    worker the job is given up.
    """

    source: str | None = None
    workers: int = 4
    name: str | None = None
    capacity: int | None = None
    error_rate: float | None = None
    url: str | None = field(default=None, repr=False)  # it may hold a password
    restart: bool = False
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
        self._names = new_workers(options.workers)
        self._dead: set[str] = set()
        self._is_shared = False
        self._keep = options.keep if options.keep is not None else options.name is not None

    def run(self) -> Report:
        """Crawl, then add up."""
        forget_old()
        self._frontier.open_queue(self._name)
        if self._options.restart:
            self._delete_earlier()
        shared = self._filter()
        try:
            fresh = shared.count() == 0
            before = self._frontier.state()
            self._report.taken_over = before.waiting + before.taken
            self._crawl(shared)
            self._put_back_all(shared)
            self._add_up(shared, fresh=fresh)
        finally:
            self._clean_up(shared)
        return self._report

    def _delete_earlier(self) -> None:
        """Delete the filter and the queue of the name, unless a crawl uses them."""
        if not all(is_dead(worker) for worker in self._frontier.state().workers):
            raise ConfigurationError(
                f"--restart deletes nothing of {self._name!r}: workers of a crawl of this name run "
                "(or ran on another machine less than a minute ago)"
            )
        delete_filter(self._name, client=self._frontier.client)
        self._frontier.delete_queue()

    def _put_back(self, shared: BloomFilter, state: QueueState, running: list[int]) -> bool:
        """Put back what workers had that are known to be dead; return whether one was.

        A last step of a dead worker may reach the server later than this, so it is done each time
        that one is in the queue.
        """
        own = {name: number for number, name in enumerate(self._names)}
        others = [worker for worker in state.workers if worker not in own]
        dead = [worker for worker in others if is_dead(worker)]
        self._is_shared = self._is_shared or len(dead) < len(others)
        fallen = [name for name in own if name in state.workers and own[name] not in running]
        self._frontier.release(shared, dead)
        self._stats.put_back.update(self._frontier.release(shared, fallen))
        self._dead.update(dead)
        return bool(dead or fallen)

    def _put_back_all(self, shared: BloomFilter) -> None:
        """Put back what workers had that had to be killed at the end."""
        try:
            self._frontier.release(shared, self._names)
        except redis.exceptions.RedisError as error:
            # The next job finds the files of dead workers.
            self._server_failed(error)
        else:
            forget([*self._names, *self._dead])

    def _clean_up(self, shared: BloomFilter) -> None:
        """Delete the keys of this run; a server that is gone by now is part of the report."""
        if self._keep:
            return
        try:
            self._frontier.delete_queue()
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
                return BloomFilter.open(self._name, client=client)
            except FilterNotFoundError:
                pass
        return BloomFilter(
            self._name,
            self._target.capacity if options.capacity is None else options.capacity,
            1e-6 if options.error_rate is None else options.error_rate,
            client=client,
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
            queue=self._frontier.queue,
            workers=self._names,
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
            is_whole = False
            with workers:
                try:
                    is_whole = self._watch(shared, workers, reader)
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
                self._stats = CrawlStats(put_back=self._stats.put_back)
                reader = JournalReader(workers.journals)
            reader.read_into(self._stats)
            # The others did what one that died left undone.
            ended = workers.failures()
            if is_whole and not self._report.failures:
                self._report.notes += ended
            else:
                self._report.failures += ended

    def _stop(self, workers: Workers) -> None:
        """Let the workers finish their pages; Ctrl-C (again) ends them at once."""
        try:
            workers.stop()
        except KeyboardInterrupt:
            self._report.interrupted = True
            workers.kill()

    def _watch(self, shared: BloomFilter, workers: Workers, reader: JournalReader) -> bool:
        """Return when the crawl is over or cannot go on; whether all was done that was asked."""
        limit = self._options.max_pages
        limit = self._target.max_pages if limit is None else limit
        last_news_at = time.monotonic()
        while True:
            # In this order: a worker that has ended has written all it will, and what a worker has
            # written of its first page is in the queue.
            running = workers.running()
            if reader.read_into(self._stats):
                last_news_at = time.monotonic()
            state = self._frontier.state()
            is_changed = self._put_back(shared, state, running)
            self._on_progress(self._progress(workers, state.waiting, len(running)))
            if limit and len(self._stats.fetched) >= limit:
                return True
            links = self._stats.links
            has_begun = all(map(links.get, running)) if running else any(links.values())
            if has_begun and not (is_changed or state.waiting or state.taken):
                return True
            if not (running or is_changed):
                return False
            if time.monotonic() - last_news_at > self._options.stall_timeout:
                seconds = f"{self._options.stall_timeout:g} s"
                self._report.failures.append(f"no worker has made progress for {seconds}; given up")
                return False
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
        if self._is_shared:
            missed = lost = set()
        report.queued = len(queued)
        self._look_at_start()
        report.missed = sorted(stats.found[key] for key in missed)
        report.lost = len(lost)
        report.earlier = 0 if fresh else len(never_new)
        report.put_back = sorted(stats.found.get(key, key) for key in stats.put_back)
        self._add_notes(fresh=fresh)

    def _add_notes(self, *, fresh: bool) -> None:
        """Say what is no failure and should be known."""
        report = self._report
        if report.put_back:
            some = "page was" if len(report.put_back) == 1 else "pages were"
            report.notes.append(
                f"{len(report.put_back)} {some} in flight when a worker died, and went back into "
                "the queue"
            )
        if self._is_shared:
            report.notes.append(
                f"another crawl with {self._name!r} ran at the same time (or died on another "
                "machine): its pages are not in these figures, and none is reported as missed"
            )
        elif not (fresh or report.pages or report.queued or report.failures or report.interrupted):
            report.notes.append(
                f"nothing is left of the crawl {self._name!r}: it has met all links it found; "
                "--restart begins anew"
            )
