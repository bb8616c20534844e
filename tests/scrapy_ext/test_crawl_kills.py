"""`bloomlock crawl` is killed at random moments, in part and as a whole, and goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from servers import exists, wait_until

if TYPE_CHECKING:
    import redis

PAGES = 80
WORKERS = 3
CONCURRENCY = 4
PATIENCE = 300.0
QUEUE = "bloomlock:crawl:kept:queue"


class Job:
    """The real command; neither it nor a worker of it outlives the block."""

    def __init__(self, url: str, server: str) -> None:
        command = [sys.executable, "-m", "bloomlock.cli", "crawl", url, "--url", server]
        options = ["--name", "kept", "--no-robots", "--timeout", "200", "--json"]
        numbers = ["--workers", str(WORKERS), "--concurrency", str(CONCURRENCY)]
        self._command = [*command, *options, *numbers]
        self.workers: list[int] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *error: object) -> None:
        with self.process:
            self.process.kill()
        for worker in self.workers:
            kill_worker(worker)

    def find_workers(self) -> list[int]:
        """Return the workers' process ids, as soon as there are all."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        if not tasks.exists():
            pytest.skip("the system does not list the children of a process")
        lines = [path.read_text() for path in tasks.glob("*/children")]
        children = [int(child) for line in lines for child in line.split()]
        if len(children) == WORKERS:
            self.workers = children
        return self.workers

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> tuple[dict[str, Any], str]:
        """Wait for its end; return the report, and what it said beside."""
        out, log = self.process.communicate(timeout=PATIENCE)
        return json.loads(out) if out else {}, log


def kill_worker(pid: int) -> None:
    """Kill a worker; one that has ended may have left its number to another process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        if b"scrapy_ext.crawl.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


class Gate:
    """Holds the site's answers back from one request on."""

    def __init__(self) -> None:
        self.at = PAGES * 10
        self.count = 0
        self.is_open = threading.Event()

    def __call__(self, count: int) -> None:
        """Hold a request back; the site calls this for each."""
        self.count = max(self.count, count)
        if count >= self.at:
            self.is_open.wait(PATIENCE)

    def close(self, after: int) -> None:
        """Answer some more requests, and no others."""
        self.is_open.clear()
        self.at = self.count + after

    def open(self) -> None:
        self.at = PAGES * 10
        self.is_open.set()


def tree_with_links(chance: random.Random) -> Any:
    """Return links: to each page one way leads, and others lead anywhere."""
    more = [chance.choices(range(PAGES), k=4) for _ in range(PAGES)]
    return lambda page: [each for each in (2 * page + 1, 2 * page + 2) if each < PAGES] + more[page]


def test_killed_at_random_moments_it_goes_on(
    site: Any,
    valkey: str,
    r: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance = random.Random(seed)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    site.links = tree_with_links(chance)
    gate = site.on_request = Gate()
    rounds = chance.sample(["all", "job"], 2)
    in_flight = 0

    def strike(job: Job, who: str) -> None:
        """Kill while requests are held back, or soon after they are answered."""
        gate.close(chance.randint(1, 20))
        wait_until(lambda: job.has_ended() or gate.count >= gate.at, PATIENCE)
        wait_until(lambda: job.has_ended() or job.find_workers(), PATIENCE)
        if chance.random() < 0.5:
            gate.open()
            time.sleep(chance.uniform(0, 0.05))
        if who == "worker" and job.workers:
            kill_worker(chance.choice(job.workers))
        if who == "all":
            for worker in job.workers[: chance.randint(0, WORKERS)]:
                kill_worker(worker)
        if who != "worker":
            job.process.kill()
        if who == "all":
            for worker in job.workers:
                kill_worker(worker)
        gate.open()

    for who in rounds:
        with Job(f"{site.url}/0", valkey) as job:
            strike(job, who)
            job.end()
            wait_until(lambda: not any(map(exists, job.workers)), PATIENCE)
        in_flight += r.hlen(f"{QUEUE}:taken")
    with Job(f"{site.url}/0", valkey) as job:
        strike(job, "worker")
        report, log = job.end()
    repeats = len(site.requested) - PAGES
    print(f"{rounds}: {in_flight} in flight, {len(report['put_back'])} put back, {repeats} repeats")
    assert job.process.returncode == 0, log
    assert set(site.requested) == {f"/{page}" for page in range(PAGES)}
    assert 0 <= repeats <= in_flight + len(report["put_back"])
    assert report["twice"] == report["missed"] == report["failures"] == []
    assert report["failed"] == report["refused"] == {}
    assert report["queued"] == 0
    assert not any("another crawl" in note for note in report["notes"])
    assert list(r.scan_iter(f"{QUEUE}*")) == []
