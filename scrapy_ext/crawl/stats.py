"""Adding up the journals: what was found, won, fetched, refused. Pure but for reading files."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(slots=True)
class CrawlStats:
    """The sum of the journals so far. Keys are fingerprints in hex.

    Attributes:
        found: Every link seen on a page, and its URL.
        won: Links the filter called new, and how often.
        fetched: Pages, and how often each was fetched.
        refused: Pages that are not to be had, and why.
        failed: Pages the network failed for, and why.
        links: Links checked, for each worker.
        duplicates: Duplicates filtered, for each worker.
    """

    found: dict[str, str] = field(default_factory=dict)
    won: Counter[str] = field(default_factory=Counter)
    fetched: Counter[str] = field(default_factory=Counter)
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
        """Return the URLs of pages that were fetched more than once."""
        return [self.found[key] for key, times in self.fetched.items() if times > 1]

    def lost(self, queued: Iterable[str]) -> set[str]:
        """Return the links the filter called new that nobody fetched, was refused, or will fetch.

        Args:
            queued: Fingerprints of what is still in the queue.
        """
        return self.won.keys() - self._settled(queued)

    def never_new(self, queued: Iterable[str]) -> set[str]:
        """Return the links found that nobody fetched and that the filter called new to nobody.

        In a filter that was empty at the start these are its false positives.
        """
        return self.found.keys() - self.won.keys() - self._settled(queued)

    def _settled(self, queued: Iterable[str]) -> set[str]:
        return self.fetched.keys() | self.refused.keys() | self.failed.keys() | set(queued)


class JournalReader:
    """Reads what was appended to the journals since it last looked."""

    def __init__(self, paths: list[Path]) -> None:
        """Keep the paths; the files need not exist yet."""
        self._paths = paths
        self._offsets = [0] * len(paths)

    def read_into(self, tally: CrawlStats) -> bool:
        """Add the new whole lines to the tally.

        Returns:
            Whether there was anything but counters.
        """
        news = False
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
                    tally.add(worker, event)
                    news = news or event["kind"] != "count"
        return news


def tolerated(items: int, error_rate: float) -> int:
    """Return how many false positives are no surprise: the mean and four standard deviations."""
    mean = items * error_rate
    return math.floor(mean + 4 * math.sqrt(mean))
