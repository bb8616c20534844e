"""Crawls in processes of their own: to an end, or killed on the way and started again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .crawl_job import CrawlJob, Measured, work

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from .contenders import Entry
    from .crawl_site import Site

PRELOADED = ("benchmarks.crawl_job", "scrapy_ext", "scrapy_redis.scheduler")
"""What the processes import before they are forked: most of their time would go into that."""
LONGEST = 300.0
"""Seconds after which a crawl that is not done has failed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a crawl that was killed and started again came to.

    Attributes:
        missing: Pages whose items were never processed.
        twice: Pages that were fetched more than once.
        processed_twice: Pages whose items were processed more than once.
    """

    missing: int
    twice: int
    processed_twice: int


def settings_of(entry: Entry, url: str, prefix: str) -> dict[str, Any]:
    """Return the settings of a contender: where it works, and its own."""
    return {
        "REDIS_URL": url,
        "BLOOMLOCK_URL": url,
        "BLOOMLOCK_NAME": f"{prefix}filter",
        # A slow machine is no outage.
        "BLOOMLOCK_TIMEOUT": 30,
        "SCHEDULER_DUPEFILTER_KEY": f"{prefix}dupefilter",
        "SCHEDULER_QUEUE_KEY": f"{prefix}requests",
        **entry.options,
    }


def run(entry: Entry, job: CrawlJob) -> Measured:
    """Crawl in a process.

    Raises:
        RuntimeError: If it failed, or is not done after LONGEST.
    """
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder, _Crawl(job, folder) as crawl:
        return crawl.measured(entry)


def run_killed(entry: Entry, job: CrawlJob, site: Site, kill_at: int) -> Ending:
    """Crawl the whole site; kill the process at a request, and start another one in its place.

    A JOBDIR among the settings is the name of a folder that both of them have.

    Raises:
        RuntimeError: As `run`; or if the crawl ended before it was killed.
    """
    site.forget()
    with tempfile.TemporaryDirectory(prefix="bloomlock-") as folder:
        journal = Path(folder) / "journal"
        settings = dict(job.settings)
        if "JOBDIR" in settings:
            settings["JOBDIR"] = str(Path(folder) / settings["JOBDIR"])
        job = replace(job, settings=settings, journal=str(journal))
        with _Crawl(job, folder) as first:

            def kill(number: int) -> None:
                if number == kill_at and first.pid:
                    os.kill(first.pid, signal.SIGKILL)

            site.on_request = kill
            first.wait_killed(entry)
        site.on_request = lambda _number: None
        with _Crawl(job, folder) as second:
            second.measured(entry)
        done = Counter(journal.read_text("ascii").split() if journal.exists() else [])
        fetched = Counter(site.served)
    return Ending(
        missing=(site.shape.pages or 0) - len(done),
        twice=sum(count > 1 for count in fetched.values()),
        processed_twice=sum(count > 1 for count in done.values()),
    )


class _Crawl:
    """A process that crawls; to be used as a context manager, which ends it."""

    def __init__(self, job: CrawlJob, folder: str) -> None:
        self._log = Path(folder) / "log"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self._answers: Connection
        self._answers, answering = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=work, args=(job, answering, str(self._log))
        )
        self._process.start()
        answering.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._answers.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid or 0

    def measured(self, entry: Entry) -> Measured:
        """Wait for its answer."""
        try:
            if self._answers.poll(LONGEST):
                found = self._answers.recv()
                if isinstance(found, Measured):
                    self._process.join(LONGEST)
                    return found
        except EOFError:
            self._process.join(LONGEST)
        raise RuntimeError(self._failure(entry))

    def wait_killed(self, entry: Entry) -> None:
        """Wait until it is killed."""
        self._process.join(LONGEST)
        if self._process.exitcode != -signal.SIGKILL:
            raise RuntimeError(self._failure(entry))

    def _failure(self, entry: Entry) -> str:
        text = self._log.read_text(errors="replace").strip()[:500] if self._log.exists() else ""
        status = self._process.exitcode
        how = f"is not done in {LONGEST:g} s" if status is None else f"ended with status {status}"
        return f"the crawl of {entry.name} {how}: {text}"
