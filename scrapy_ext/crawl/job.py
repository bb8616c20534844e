"""A job of `bloomlock crawl`: start the workers, add up what they tell, stop them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis

from bloomlock.errors import ConfigurationError
from scrapy_ext.crawl import GIVEN
from scrapy_ext.crawl.pydoc_pages import pydoc_pages
from scrapy_ext.crawl_state import CrawlRecord, Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from io import FileIO

LOOK_S = 0.2
LAST_PAGES_S = 30.0
"""A worker that is stopped gets this long for the pages it has in flight."""


@dataclass(slots=True)
class Worker:
    """A worker process and what it has told; `last` is its last URL, `reason` why it closed."""

    process: subprocess.Popen[bytes]
    log: Path
    told: FileIO
    half_line: bytes = b""
    pages: int = 0
    links: int = 0
    duplicates: int = 0
    last: str = ""
    reason: str = ""

    def figures(self) -> dict[str, Any]:
        last = self.last if self.process.poll() is None else "has ended"
        return {"pid": self.process.pid, "pages": self.pages, "links": self.links, "last": last}

    def failure(self) -> str:
        """Return a sentence about how it ended by itself, empty if in order."""
        code = self.process.poll()
        if code is None or (code == 0 and self.reason == "finished"):
            return ""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "] CRITICAL: " in line or "] ERROR: " in line]
        why = self.reason or "".join(errors[:1])[-300:]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}: {why}"
        return f"process {self.process.pid} {how}"


class Job:
    """Crawls a site with several processes, once.

    Attributes:
        found: Every link that a page had.
        fetched: How often each page was fetched.
        failed: Why a page was not fetched: the network, the site, or its robots.txt.
        missed: Links that were found and never fetched; None: not known, as the crawl was stopped
            early or went on with an earlier one.
        failures: A sentence for each thing that went wrong.
        notes: A sentence for each thing that is no failure.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take the options of the command."""
        self._options = options
        self.title = "starting"
        self.workers: list[Worker] = []
        self.found: set[str] = set()
        self.fetched: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self.missed: list[str] | None = None
        self.state = Figures("starting", 0, 0, 0, 0, 0, {})
        self.seconds = 0.0
        self.fill: float | None = None
        self.filter_bytes: int | None = None
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.interrupted = False

    def figures(self) -> dict[str, Any]:
        """Return what there is to show; it is JSON."""
        twice = [url for url, times in self.fetched.items() if times > 1]
        plain = ("title", "seconds", "failed", "missed", "fill", "filter_bytes")
        more = ("failures", "notes", "interrupted")
        return {
            **{name: getattr(self, name) for name in (*plain, *more)},
            "pages": len(self.fetched),
            "links": sum(worker.links for worker in self.workers),
            "duplicates": sum(worker.duplicates for worker in self.workers),
            "distinct": len(self.found),
            "twice": twice,
            # Who dies may have fetched pages that another fetches again.
            "ok": not self.failures and (not twice or bool(self.notes)),
            "waiting": self.state.waiting + self.state.taken,
            "hosts": self.state.by_host,
            "state": self.state.state,
            "workers": [worker.figures() for worker in self.workers],
        }

    def run(self, client: Any, url: str, show: Callable[[], object]) -> None:
        """Crawl; `client` is one of the server at `url`, `show` is called as the figures change.

        Blocks until the crawl has ended, the page limit is reached, no worker is left, or Ctrl-C.
        All processes have ended on return. A crawl without a name leaves nothing on the server.
        """
        options = self._options
        start = self._start_page(show)
        record = CrawlRecord(client, options["name"] or f"crawl-{secrets.token_hex(6)}")
        try:
            # Until all workers have joined it this process holds the crawl, so that it does not
            # end: one that is late would begin another.
            is_whole = record.hold(anew=options["restart"])
            with tempfile.TemporaryDirectory(prefix="bloomlock-crawl-") as folder:
                try:
                    for number in range(options["workers"]):
                        self._start_worker(Path(folder, f"{number}"), start, record.name, url)
                    self._watch(record, show)
                except KeyboardInterrupt:
                    self.interrupted = True
                finally:
                    self._stop()
            record.leave()
            self.state = record.figures()
            if options["name"] is None:
                record.delete()
        except redis.exceptions.RedisError as error:
            self.failures.append(f"the server failed: {error}")
            return
        if is_whole and self.state.state != "running":
            self.missed = sorted(self.found - {*self.fetched, *self.failed})
        if not self.fetched and self.failed:
            why = next(iter(self.failed.values()))
            self.failures.append(f"the start page {start} could not be fetched: {why}")

    def _start_page(self, show: Callable[[], object]) -> str:
        """Return the URL of the site's first page, and set its title."""
        source = self._options["source"]
        parts = urlsplit(source or "")
        if parts.scheme in {"http", "https"} and parts.hostname:
            self.title = source
            return str(source)

        def rendered(text: str) -> None:
            self.title = text
            show()

        folder = pydoc_pages(rendered) if source is None else Path(source)
        self.title = "the documentation of Python" if source is None else str(folder)
        index = folder.resolve() / "index.html"
        if not index.is_file():
            raise ConfigurationError(
                f"SOURCE is {source!r}; allowed are an http or https URL and a folder with an "
                "index.html."
            )
        return index.as_uri()

    def _start_worker(self, file: Path, start: str, name: str, url: str) -> None:
        options, is_remote = self._options, not start.startswith("file:")
        settings = {
            "START_URL": start,
            "BLOOMLOCK_URL": url,
            "BLOOMLOCK_NAME": name.replace("%", "%%"),
            "BLOOMLOCK_CAPACITY": options["capacity"],
            "ROBOTSTXT_OBEY": is_remote and options["robots"],
            "CONCURRENT_REQUESTS": options["concurrency"],
            "CONCURRENT_REQUESTS_PER_DOMAIN": options["concurrency"],
            "DOWNLOAD_DELAY": options["delay"],
            "AUTOTHROTTLE_ENABLED": is_remote,
        }
        told, log = file.with_suffix(".told"), file.with_suffix(".log")
        with told.open("wb") as stdout, log.open("wb") as stderr:
            # In a session of its own: Ctrl-C reaches the job alone.
            process = subprocess.Popen(
                [sys.executable, "-m", "scrapy_ext.crawl.worker"],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {GIVEN: json.dumps(settings)},
                start_new_session=True,
            )
        self.workers.append(Worker(process, log, told.open("rb", buffering=0)))

    def _watch(self, record: CrawlRecord, show: Callable[[], object]) -> None:
        """Show how far the crawl is until no worker runs, or there are pages enough."""
        started, is_held = time.monotonic(), True
        limit = self._options["max_pages"]
        while num_running := sum(worker.process.poll() is None for worker in self.workers):
            self._read()
            self.seconds = time.monotonic() - started
            self.state = record.figures()
            if is_held and self.state.workers > num_running:
                record.leave()
                is_held = False
            show()
            if limit and len(self.fetched) >= limit:
                break
            time.sleep(LOOK_S)

    def _read(self) -> None:
        """Add up what workers have told since; one that was killed may leave half a line."""
        for worker in self.workers:
            *lines, worker.half_line = (worker.half_line + worker.told.readall()).split(b"\n")
            for told in map(json.loads, lines):
                worker.links, worker.duplicates = told["links"], told["duplicates"]
                self.filter_bytes = told["bytes"] or self.filter_bytes
                self.fill = told["fill"] or self.fill
                worker.reason = told["reason"]
                if worker.reason:
                    continue
                worker.last = told["page"]
                self.found.update(told["found"], [worker.last])
                if told["why"]:
                    self.failed[worker.last] = told["why"]
                else:
                    worker.pages += 1
                    self.fetched[worker.last] += 1

    def _stop(self) -> None:
        """Let the workers finish the pages they have in flight; Ctrl-C ends them at once."""
        self._read()
        failures = [*filter(None, (worker.failure() for worker in self.workers))]
        deadline = time.monotonic() + LAST_PAGES_S
        try:
            for worker in self.workers:
                worker.process.terminate()
            for worker in self.workers:
                worker.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired) as error:
            self.interrupted |= isinstance(error, KeyboardInterrupt)
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()
            self._read()
            for worker in self.workers:
                worker.told.close()
        # What one left that died, the others have done.
        is_done = any(worker.reason == "finished" for worker in self.workers)
        (self.notes if is_done else self.failures).extend(failures)
