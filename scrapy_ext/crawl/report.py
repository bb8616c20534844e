"""What a job says at its end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """How far a running job is.

    Attributes:
        pages: Pages fetched.
        links: Links checked.
        duplicates: Links filtered.
        queued: Pages waiting.
        workers: Workers running.
        pids: Process ids of all workers, in order.
    """

    pages: int
    links: int
    duplicates: int
    queued: int
    workers: int
    pids: list[int]


@dataclass(slots=True)
class Rendering:
    """How far the pages are that are made before the crawl.

    Attributes:
        done: Pages rendered.
        total: Pages there will be at most.
    """

    done: int
    total: int


@dataclass(slots=True)
class Report:
    """The end of a job.

    Attributes:
        title: What was crawled.
        workers: How many processes crawled it.
        pages: Pages fetched.
        links: Links checked.
        distinct: Distinct links found.
        duplicates: Links filtered as duplicates.
        twice: URLs of pages fetched more than once.
        missed: URLs of links found, never fetched, never refused, and not in the queue.
        lost: How many of those the filter had called new: no false positives.
        tolerated: How many of the others the filter's error rate explains.
        refused: URLs that are not to be had, and why.
        failed: URLs the network failed for, and why.
        queued: Pages left in the queue, where the job was stopped early.
        earlier: Links an earlier job of the same name had seen.
        seconds: Length of the crawl.
        filter_name: Name of the filter.
        filter_capacity: Its capacity.
        filter_error_rate: Its error rate.
        filter_bytes: Its memory; None where the server does not tell.
        set_bytes: Memory of a Redis set of the same fingerprints, exact.
        failures: A sentence for each thing that went wrong.
        interrupted: Whether the user stopped the job.
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
    seconds: float = 0.0
    filter_name: str = ""
    filter_capacity: int = 0
    filter_error_rate: float = 0.0
    filter_bytes: int | None = None
    set_bytes: int | None = None
    failures: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Nothing fetched twice, nothing missed beyond the error rate, nothing went wrong."""
        explained = not self.lost and len(self.missed) <= self.tolerated
        return not self.twice and explained and not self.failures
