"""What workers write down, what that adds up to, and what a job reports.

A worker's journal has one JSON line for each event, each in one write. A line is in the file as
soon as the call returns, so a worker that is killed leaves a true record:

- `page`: a page was fetched; the links on it, and which of them this worker had not met before
- `won`: a link was new to the shared filter and was put into the queue in the same step
- `refused`: a page was not available (robots.txt, 404, too large)
- `failed`: a page was not available because of the network
- `count`: links checked and duplicates filtered by this worker so far
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Journal:
    """The journal of one worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._met: set[str] = set()
        self.checked = 0
        self.duplicates = 0

    def page(self, key: bytes, url: str, links: Iterable[tuple[bytes, str]]) -> None:
        """Note a page that was fetched, and the fingerprints and URLs of its links."""
        found = {link.hex(): target for link, target in links}
        fresh = {link: target for link, target in found.items() if link not in self._met}
        self._met.update(fresh)
        self._write("page", key=key.hex(), url=url, found=fresh)

    def won(self, key: bytes, url: str) -> None:
        """Note a link that the filter said is new and that is queued."""
        self._write("won", key=key.hex(), url=url)

    def refused(self, key: bytes, url: str, why: str) -> None:
        """Note a page that the site, or its robots.txt, does not give."""
        self._write("refused", key=key.hex(), url=url, why=why)

    def failed(self, key: bytes, url: str, why: str) -> None:
        """Note a page that could not be fetched."""
        self._write("failed", key=key.hex(), url=url, why=why)

    def count(self) -> None:
        """Note the counters as they stand."""
        self._write("count", checked=self.checked, duplicates=self.duplicates)

    def _write(self, kind: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **fields}).encode() + b"\n")


@dataclass(slots=True)
class CrawlStats:
    """The sum of the journals so far. Keys are fingerprints in hex.

    Attributes:
        found: Every link seen on a page, and its URL.
        won: Links the filter called new, and how often.
        fetched: Pages, and how often each was fetched.
        put_back: Pages that a worker had when it died, and how often.
        refused: Pages that are not available, and why.
        failed: Pages the network failed for, and why.
        links: Links checked, for each worker.
        duplicates: Duplicates filtered, for each worker.
    """

    found: dict[str, str] = field(default_factory=dict)
    won: Counter[str] = field(default_factory=Counter)
    fetched: Counter[str] = field(default_factory=Counter)
    put_back: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    links: dict[int, int] = field(default_factory=dict)
    duplicates: dict[int, int] = field(default_factory=dict)

    def add(self, worker: int, event: dict[str, Any]) -> None:
        """Add one line of a worker's journal."""
        key = event.get("key", "")
        match event["kind"]:
            case "page":
                self.fetched[key] += 1
                self.found.setdefault(key, event["url"])
                self.found.update(event["found"])
            case "won":
                self.won[key] += 1
                self.found.setdefault(key, event["url"])
            case "refused":
                self.refused[key] = event["why"]
            case "failed":
                self.failed[key] = event["why"]
            case "count":
                self.links[worker] = event["checked"]
                self.duplicates[worker] = event["duplicates"]

    def twice(self) -> list[str]:
        """Return the URLs of pages that were fetched more than once, for no death of a worker."""
        fetched, put_back = self.fetched, self.put_back
        return [self.found[key] for key in fetched if fetched[key] > 1 + put_back[key]]

    def lost(self, queued: Iterable[str]) -> set[str]:
        """Return the links called new that no worker fetched, was refused, or will fetch."""
        return self.won.keys() - self._settled(queued)

    def never_new(self, queued: Iterable[str]) -> set[str]:
        """Return the links found that no worker fetched and that the filter called new to none.

        In a filter that was empty at the start these are its false positives.
        """
        return self.found.keys() - self.won.keys() - self._settled(queued)

    def _settled(self, queued: Iterable[str]) -> set[str]:
        return self.fetched.keys() | self.refused.keys() | self.failed.keys() | set(queued)


class JournalReader:
    """Reads what was appended to the journals since it last looked."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._offsets = [0] * len(paths)

    def read_into(self, stats: CrawlStats) -> bool:
        """Add the new whole lines to the stats; return whether there was anything but counters."""
        is_news = False
        for worker, path in enumerate(self._paths):
            if not path.exists():
                continue
            with path.open("rb") as journal:
                journal.seek(self._offsets[worker])
                for line in journal:
                    if not line.endswith(b"\n"):
                        break
                    self._offsets[worker] += len(line)
                    event = json.loads(line)
                    stats.add(worker, event)
                    is_news = is_news or event["kind"] != "count"
        return is_news


def tolerated(items: int, error_rate: float) -> int:
    """Return how many false positives are no surprise: the mean and four standard deviations."""
    mean = items * error_rate
    return math.floor(mean + 4 * math.sqrt(mean))


@dataclass(slots=True)
class Progress:
    """How far a running job is; `queued` pages wait, `workers` run."""

    pages: int
    links: int
    duplicates: int
    queued: int
    workers: int
    pids: list[int]


@dataclass(slots=True)
class Rendering:
    """How many pages are made before the crawl, of how many at most."""

    done: int
    total: int


@dataclass(slots=True)
class Report:
    """The end of a job; dicts of URLs say why.

    Attributes:
        missed: URLs of links found, never fetched, never refused, and not in the queue.
        lost: How many of those the filter had called new: no false positives.
        tolerated: How many of the others the filter's error rate explains.
        refused: URLs that the site, or its robots.txt, does not give.
        failed: URLs the network failed for.
        queued: Pages left in the queue, where the job was stopped early.
        earlier: Links an earlier job of the same name had seen.
        taken_over: Pages that an earlier job of the same name had left, waiting or in flight.
        put_back: URLs of pages that workers had when they died; they were queued again.
        filter_bytes: Memory of the filter; None where the server does not say.
        set_bytes: Memory of a Redis set of the same fingerprints, exact.
        failures: A sentence for each thing that went wrong.
        notes: A sentence for each thing that is no failure and should be known.
    """

    title: str
    workers: int
    pages: int = 0
    links: int = 0
    distinct: int = 0
    duplicates: int = 0
    twice: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    lost: int = 0
    tolerated: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    queued: int = 0
    earlier: int = 0
    taken_over: int = 0
    put_back: list[str] = field(default_factory=list)
    seconds: float = 0.0
    filter_name: str = ""
    filter_capacity: int = 0
    filter_error_rate: float = 0.0
    filter_bytes: int | None = None
    set_bytes: int | None = None
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Nothing fetched twice, nothing missed beyond the error rate, nothing went wrong."""
        explained = not self.lost and len(self.missed) <= self.tolerated
        return not self.twice and explained and not self.failures
