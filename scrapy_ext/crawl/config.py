"""What a worker is told, as one JSON file that only the user can read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class CrawlConfig:
    """The part of a job that is the same for each of its workers.

    Attributes:
        start: Address of the first page.
        token: What the job's own folder server wants in its header; empty for other sites.
        redis: URL of the server that holds the filter and the queue.
        filter_name: Name of the filter.
        capacity: Its capacity.
        error_rate: Its error rate.
        strategy: How an update of it reaches the server.
        queue: Key of the queue.
        busy: Key of the hash that says which worker has pages in hand.
        robots: Whether robots.txt is obeyed.
        concurrency: Pages one worker fetches at the same time.
        delay: Pause between two pages of one worker, in seconds.
        throttle: Whether each worker slows down with the site.
        timeout: Longest wait for one page, in seconds.
    """

    start: str
    token: str = field(repr=False)
    redis: str = field(repr=False)
    filter_name: str
    capacity: int
    error_rate: float
    strategy: str
    queue: str
    busy: str
    robots: bool
    concurrency: int
    delay: float
    throttle: bool
    timeout: float

    @property
    def last_pages(self) -> float:
        """How long a stopped worker may take for the pages it has in hand, in seconds."""
        return 15.0 + self.delay * self.concurrency

    def save(self, path: Path) -> None:
        """Write the file; it holds passwords, so it belongs into a private folder."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> CrawlConfig:
        """Read the file."""
        return cls(**json.loads(path.read_text("utf-8")))


def same_site(first: str, second: str) -> bool:
    """Return whether two URLs name the same host and port; http and https count as one.

    Raises:
        ValueError: One of them is no URL.
    """
    return _site(first) == _site(second)


def _site(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    return parts.hostname, 0 if port in _PORTS.values() else port
