"""A job of `bloomlock crawl`: start the workers, add up what they tell, stop them; and its page."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis

from bloomlock.errors import ConfigurationError
from scrapy_ext.crawl.pydoc_pages import pydoc_pages
from scrapy_ext.crawl.worker import GIVEN
from scrapy_ext.crawl_state import Answer, CrawlRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import FileIO

LOOK_S = 0.2
FILL_S = 2.0
"""How often the fill is read: the server counts all bits of the filter."""
LAST_PAGES_S = 30.0
"""A stopped worker gets this time for its pages in flight."""


@dataclass(slots=True)
class Worker:
    """A worker process and its report; `last` is its last URL, `reason` why it closed."""

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
        """Return a sentence on why it ended; empty if it runs, or ended in order."""
        code = self.process.poll()
        if code is None or (code == 0 and self.reason == "finished"):
            return ""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "] CRITICAL: " in line or "] ERROR: " in line]
        why = self.reason or "".join(errors[:1])[-300:]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}: {why}"
        return f"process {self.process.pid} {how}"


@dataclass
class Job:
    """Crawls a site with several processes, once; `options` are those of the command.

    `failed` says why pages were not fetched: the network, the site, or its robots.txt. `missed` are
    links that were found and never fetched; None: not known, as the crawl was stopped early or went
    on with an earlier one. `notes` are about things that are no `failures`.
    """

    options: Mapping[str, Any]
    title: str = "starting"
    workers: list[Worker] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    fetched: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    missed: list[str] | None = None
    now: Answer = field(default_factory=lambda: Answer("starting"))
    seconds: float = 0.0
    fill: float | None = None
    filter_bytes: int | None = None
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def figures(self) -> dict[str, Any]:
        hidden = {"options", "found", "fetched", "now"}
        # The page of --watch reads in another thread, so take a copy.
        twice = [url for url, times in self.fetched.copy().items() if times > 1]
        return {
            **{name: value for name, value in vars(self).items() if name not in hidden},
            "workers": [worker.figures() for worker in self.workers],
            "state": self.now.state,
            "waiting": self.now.waiting + self.now.taken,
            "hosts": dict(sorted(self.now.by_host, key=lambda pair: -pair[1])[:10]),
            "pages": len(self.fetched),
            "links": sum(worker.links for worker in self.workers),
            "duplicates": sum(worker.duplicates for worker in self.workers),
            "distinct": len(self.found),
            "twice": twice,
            # After the death of a worker another one fetches its open pages again.
            "ok": not self.failures and (not twice or bool(self.notes)),
        }

    def run(self, client: Any, url: str, show: Callable[[str], object]) -> None:
        """Crawl; `client` is one of the server at `url`.

        `show` gets a text until the crawl begins, and an empty one when the figures have changed.
        Blocks until the crawl has ended, the page limit is reached, no worker is left, or Ctrl-C.
        All processes have ended on return. A crawl without a name leaves nothing on the server.
        """
        start = self._start_page(show)
        name = self.options["name"]
        record = CrawlRecord(client, name or f"crawl-{secrets.token_hex(6)}")
        try:
            # A worker that joins after the end would begin another crawl, so this process holds
            # the crawl until all have joined.
            is_whole = record.hold(restart=self.options["restart"])
            with tempfile.TemporaryDirectory(prefix="bloomlock-crawl-") as folder:
                try:
                    for number in range(self.options["workers"]):
                        self._start_worker(Path(folder, f"{number}"), start, record.name, url)
                    self._watch(record, show)
                except KeyboardInterrupt:
                    self.interrupted = True
                finally:
                    self._stop()
            record.leave()
            self.now = record.look()
            if name is None:
                record.delete()
        except redis.exceptions.RedisError as error:
            self.failures.append(f"the server failed: {error}")
            return
        if is_whole and self.now.state != "running":
            self.missed = sorted(self.found - {*self.fetched, *self.failed})
        if not self.fetched and self.failed:
            why = next(iter(self.failed.values()))
            self.failures.append(f"the start page {start} could not be fetched: {why}")

    def _start_page(self, show: Callable[[str], object]) -> str:
        source = self.options["source"]
        parts = urlsplit(source or "")
        self.title = source or "the documentation of Python"
        if parts.scheme in {"http", "https"} and parts.hostname:
            return str(source)
        folder = pydoc_pages(show) if source is None else Path(source)
        index = folder.resolve() / "index.html"
        if not index.is_file():
            raise ConfigurationError(
                f"SOURCE is {source!r}; allowed are an http or https URL and a folder with an "
                "index.html."
            )
        return index.as_uri()

    def _start_worker(self, file: Path, start: str, name: str, url: str) -> None:
        options, is_remote = self.options, not start.startswith("file:")
        settings = {
            "START_URL": start,
            "BLOOMLOCK_URL": url,
            "BLOOMLOCK_NAME": name.replace("%", "%%"),
            "BLOOMLOCK_CAPACITY": options["capacity"],
            "ROBOTSTXT_OBEY": is_remote and options["robots"],
            "CONCURRENT_REQUESTS": options["concurrency"],
            "CONCURRENT_REQUESTS_PER_DOMAIN": options["concurrency"],
            "DOWNLOAD_DELAY": options["delay"] or 0.0,
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

    def _watch(self, record: CrawlRecord, show: Callable[[str], object]) -> None:
        started, is_held = time.monotonic(), True
        fill_at = 0.0
        limit = self.options["max_pages"]
        while num_running := sum(worker.process.poll() is None for worker in self.workers):
            self._read()
            self.seconds = time.monotonic() - started
            if self.seconds >= fill_at and (info := record.filter_info()):
                self.fill, self.filter_bytes = info.fill_ratio, info.memory_bytes
                fill_at = self.seconds + FILL_S
            self.now = record.look()
            if len(self.now.workers) > num_running and is_held:
                record.leave()
                is_held = False
            show("")
            if limit and len(self.fetched) >= limit:
                break
            time.sleep(LOOK_S)

    def _read(self) -> None:
        """Add up new lines of the workers; one that was killed may leave half a line."""
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
        # The others have done the pages of a worker that died.
        is_done = any(worker.reason == "finished" for worker in self.workers)
        (self.notes if is_done else self.failures).extend(failures)


@contextmanager
def watched(job: Job) -> Iterator[str]:
    """Serve the page in a thread; yields its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site can reach this port by a name of its own; refuse it.
            if not self.headers.get("Host", "").startswith("127.0.0.1:"):
                self.send_error(403)
                return
            kind, body = "application/json", json.dumps(job.figures()).encode()
            if self.path != "/figures":
                kind, body = "text/html", (files("scrapy_ext.crawl") / "watch.html").read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
