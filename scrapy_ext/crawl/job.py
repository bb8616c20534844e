"""A job of `bloomlock crawl`: start the workers, add up what they tell, stop them."""

from __future__ import annotations

import json
import math
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bloomlock import plan
from bloomlock.server import explained, find_address
from scrapy_ext.crawl.site import open_target
from scrapy_ext.crawl_state import CrawlRecord, Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy_ext.crawl.site import Target

LOOK_S = 0.2
LAST_PAGES_S = 30.0
"""A worker that is stopped gets this long for the pages it has in flight."""
MOST_KEYS = 10_000


@dataclass(slots=True)
class Worker:
    """A worker process and what it has told; `last` is its last URL, `reason` why it closed."""

    process: subprocess.Popen[bytes]
    log: Path
    pages: int = 0
    links: int = 0
    duplicates: int = 0
    last: str = ""
    reason: str = ""
    reader: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def failure(self) -> str:
        """A sentence about how it ended, empty if in order."""
        code = self.process.poll()
        if code is None or (code == 0 and self.reason in {"finished", "shutdown"}):
            return ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "] CRITICAL: " in line or "] ERROR: " in line]
        why = self.reason or ("" if code < 0 else "".join(errors[:1])[-300:])
        return f"process {self.process.pid} {how}" + (f": {why}" if why else "")


@dataclass(slots=True)
class Report:
    """What a job did; it grows while the job runs.

    Attributes:
        found: Every link that a page had: its URL, by its fingerprint.
        fetched: How often each page was fetched, by its fingerprint.
        refused: Why the site, or its robots.txt, does not give a page, by its URL.
        failed: The same of pages that the network failed for.
        missed: URLs of links that were found and never fetched; None: not known, as the crawl was
            stopped early or went on with an earlier one.
        tolerated: How many of these the error rate explains.
        queued: Pages that wait, or are being fetched.
        set_bytes: Memory of an exact set of the same fingerprints.
        failures: A sentence for each thing that went wrong.
        notes: A sentence for each thing that is no failure.
    """

    title: str
    workers: list[Worker] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    fetched: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    missed: list[str] | None = None
    tolerated: int = 0
    queued: int = 0
    seconds: float = 0.0
    state: Figures | None = None
    fill: float | None = None
    filter_bytes: int | None = None
    set_bytes: int | None = None
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def links(self) -> int:
        return sum(worker.links for worker in self.workers)

    @property
    def duplicates(self) -> int:
        return sum(worker.duplicates for worker in self.workers)

    @property
    def is_done(self) -> bool:
        """Whether the crawl came to its end."""
        return any(worker.reason == "finished" for worker in self.workers)

    @property
    def twice(self) -> list[str]:
        return [self.found.get(key, key) for key, times in self.fetched.items() if times > 1]

    @property
    def ok(self) -> bool:
        """Nothing fetched twice but for a death, nothing missed beyond the rate, no failure."""
        is_once = not self.twice or bool(self.notes)
        return is_once and len(self.missed or ()) <= self.tolerated and not self.failures

    def read(self, worker: Worker) -> None:
        """Add the lines that a worker writes; one that was killed may leave half a line."""
        for line in worker.process.stdout or ():
            if line.endswith(b"\n"):
                with self._lock:
                    self._add(worker, json.loads(line))

    def _add(self, worker: Worker, told: dict[str, Any]) -> None:
        worker.links, worker.duplicates = told["links"], told["duplicates"]
        self.filter_bytes = told["filter_bytes"] or self.filter_bytes
        self.fill = told["fill"] or self.fill
        if told["kind"] == "closed":
            worker.reason = told["reason"]
            return
        self.found.setdefault(told["key"], told["url"])
        if told["kind"] == "page":
            worker.pages, worker.last = worker.pages + 1, told["url"]
            self.found.update(told["found"])
            self.fetched[told["key"]] += 1
        else:
            (self.refused if told["kind"] == "refused" else self.failed)[told["url"]] = told["why"]

    def add_up(self, target: Target, error_rate: float, *, is_whole: bool) -> None:
        """Fill in what is known at the end."""
        if self.is_done and is_whole:
            gone = {*self.refused, *self.failed}
            left = [url for key, url in self.found.items() if key not in self.fetched]
            self.missed = sorted(url for url in left if url not in gone)
            # The mean and four standard deviations of the false positives.
            mean = len(self.found) * error_rate
            self.tolerated = math.floor(mean + 4 * math.sqrt(mean))
        why = {**self.refused, **self.failed}.get(target.start)
        if why and not self.fetched:
            self.failures.append(f"the start page {target.start} could not be fetched: {why}")
        ended = [worker.failure for worker in self.workers if worker.failure]
        # What one left that died, the others have done.
        if not self.interrupted:
            (self.notes if self.is_done else self.failures).extend(ended)

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        plain = ("title", "refused", "failed", "missed", "tolerated", "queued", "seconds")
        more = ("filter_bytes", "set_bytes", "failures", "notes", "interrupted", "twice", "ok")
        counted = {"links": self.links, "duplicates": self.duplicates, "distinct": len(self.found)}
        told = {name: getattr(self, name) for name in (*plain, *more)}
        return {"pages": len(self.fetched), "workers": len(self.workers), **counted, **told}


def run(
    options: Mapping[str, Any],
    show: Callable[[Report], None],
    on_render: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Crawl a site with several processes; `show` gets the report as it grows.

    The options are those of the command, where None stands for what suits the site.
    Blocks until the crawl has ended, the page limit is reached, no worker is left, or Ctrl-C. All
    processes have ended on return. A crawl without a name leaves nothing on the server.
    """
    address = find_address(options["url"], name="url")
    with explained(address):
        client = redis.Redis.from_url(
            address.url, socket_timeout=5, socket_connect_timeout=5, retry=Retry(NoBackoff(), 0)
        )
        client.ping()
    with client, open_target(options["source"], on_render) as target:
        # It refuses what no filter can be made for.
        plan(options["capacity"] or target.capacity, options["error_rate"])
        report = Report(target.title)
        record = CrawlRecord(client, options["name"] or f"crawl-{secrets.token_hex(6)}")
        limit = target.max_pages if options["max_pages"] is None else options["max_pages"]
        try:
            # Until all workers have joined it this process holds the crawl, so that it does not
            # end: one that is late would begin another.
            is_whole = record.hold(anew=options["restart"])
            with tempfile.TemporaryDirectory(prefix="bloomlock-crawl-") as folder:
                settings = _settings(options, target, record.name, address.url)
                try:
                    for number in range(options["workers"]):
                        _start(report, Path(folder, f"{number}.log"), settings)
                    _watch(report, record, limit, show)
                except KeyboardInterrupt:
                    report.interrupted = True
                finally:
                    _stop(report)
                record.let_go()
                report.add_up(target, options["error_rate"], is_whole=is_whole)
            state = record.figures()
            report.queued = 0 if report.is_done else state.waiting + state.taken
            report.set_bytes = _exact_bytes(client, list(report.found))
            if options["name"] is None:
                record.delete()
        except redis.exceptions.RedisError as error:
            report.failures.append(f"the server failed: {error}")
    return report


def _settings(options: Mapping[str, Any], target: Target, name: str, url: str) -> dict[str, Any]:
    return {
        "START_URL": target.start,
        "TOKEN": target.token,
        "BLOOMLOCK_URL": url,
        "BLOOMLOCK_NAME": name.replace("%", "%%"),
        "BLOOMLOCK_CAPACITY": options["capacity"] or target.capacity,
        "BLOOMLOCK_ERROR_RATE": options["error_rate"],
        "ROBOTSTXT_OBEY": target.is_remote if options["robots"] is None else options["robots"],
        "CONCURRENT_REQUESTS": options["concurrency"],
        "CONCURRENT_REQUESTS_PER_DOMAIN": options["concurrency"],
        "DOWNLOAD_DELAY": options["delay"],
        "AUTOTHROTTLE_ENABLED": target.is_remote,
    }


def _start(report: Report, log: Path, settings: dict[str, Any]) -> None:
    with log.open("wb") as errors:
        # S603: this very interpreter and a module of ours. In a session of its own: Ctrl-C reaches
        # the job alone.
        process = subprocess.Popen(
            [sys.executable, "-m", "scrapy_ext.crawl.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    worker = Worker(process, log)
    report.workers.append(worker)
    worker.reader = threading.Thread(target=report.read, args=(worker,), daemon=True)
    worker.reader.start()
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()


def _watch(
    report: Report, record: CrawlRecord, limit: int | None, show: Callable[[Report], None]
) -> None:
    """Show how far the crawl is until no worker runs, or there are pages enough."""
    started = time.monotonic()
    is_held = True
    while num_running := sum(worker.is_running for worker in report.workers):
        report.seconds = time.monotonic() - started
        report.state = record.figures()
        if is_held and report.state.workers > num_running:
            record.let_go()
            is_held = False
        show(report)
        if limit and len(report.fetched) >= limit:
            break
        time.sleep(LOOK_S)


def _stop(report: Report) -> None:
    """Let the workers finish the pages they have in flight; Ctrl-C (again) ends them at once."""
    deadline = time.monotonic() + LAST_PAGES_S
    try:
        for worker in report.workers:
            with suppress(OSError):
                if worker.process.stdin is not None:
                    worker.process.stdin.close()
        for worker in report.workers:
            worker.process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired) as error:
        report.interrupted |= isinstance(error, KeyboardInterrupt)
    finally:
        for worker in report.workers:
            worker.process.kill()
            worker.process.wait()
            if worker.reader is not None:
                worker.reader.join(timeout=LAST_PAGES_S)


def _exact_bytes(client: redis.Redis, fingerprints: list[str]) -> int | None:
    """Return the bytes of a set of fingerprints as scrapy-redis makes it; None: not known."""
    key = f"bloomlock-crawl-{secrets.token_hex(6)}"
    try:
        for first in range(0, len(fingerprints), MOST_KEYS):
            client.sadd(key, *fingerprints[first : first + MOST_KEYS])
        size = client.memory_usage(key, samples=0)
    except redis.exceptions.ResponseError:
        return None
    finally:
        client.delete(key)
    return None if size is None else int(str(size))
