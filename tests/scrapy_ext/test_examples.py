"""The example projects do what they say, as processes that a user starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 300.0

pytestmark = pytest.mark.usefixtures("r")


class Run:
    """A crawl of an example."""

    def __init__(
        self, example: str, spider: str, url: str, server: str, file: Path, settings: Iterable[str]
    ) -> None:
        self._file = file
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "scrapy", "crawl", spider),
                *("-a", f"url={url}", "-O", str(file), "-s", "ROBOTSTXT_OBEY=False"),
                # A slow machine is no outage.
                *("-s", "BLOOMLOCK_TIMEOUT=60"),
                *(part for setting in settings for part in ("-s", setting)),
            ],
            cwd=EXAMPLES / example,
            env={
                **os.environ,
                "REDIS_URL": server,
                "BLOOMLOCK_URL": server,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def paths(self) -> Counter[str]:
        """Wait for its end; return the paths of its items."""
        _, log = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, log
        assert "ERROR" not in log, log
        items = map(json.loads, self._file.read_text().splitlines())
        return Counter(urlsplit(item["url"]).path for item in items)

    def kill(self) -> None:
        """End it if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


@pytest.fixture
def start(site: Any, valkey: str, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start a crawl of an example on the site."""
    runs: list[Run] = []

    def start(example: str, spider: str, *settings: str) -> Run:
        file = tmp_path / f"{len(runs)}.jsonl"
        runs.append(Run(example, spider, f"{site.url}/0", valkey, file, settings))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


def test_plain(start: Callable[..., Run], site: Any, r: Any) -> None:
    assert start("plain", "site").paths() == dict.fromkeys(site.paths, 1)
    assert r.keys("*dupefilter*") == []


def test_cluster(start: Callable[..., Run], site: Any) -> None:
    runs = [start("cluster", "site") for _ in range(2)]
    fetched = runs[0].paths() + runs[1].paths()
    # The second may begin when the first has ended; then it asks for the start page again.
    assert fetched.pop("/0") in {1, 2}
    assert fetched == dict.fromkeys(set(site.paths) - {"/0"}, 1)


def test_cluster_goes_on_without_a_process(start: Callable[..., Run], site: Any) -> None:
    held = threading.Event()

    def kill_the_first(count: int) -> None:
        if count == 4:
            runs[0].kill()
            held.set()
        elif count > 1 and not held.is_set():
            held.wait(PATIENCE)

    site.on_request = kill_the_first
    runs = [start("cluster", "site", "BLOOMLOCK_LEASE=5")]
    assert held.wait(PATIENCE)
    # What it was fetching is taken over when its lease is over.
    assert set(start("cluster", "site", "BLOOMLOCK_LEASE=5").paths()) >= set(site.paths) - {"/0"}


def test_incremental(start: Callable[..., Run], site: Any) -> None:
    articles = [1, 2, 3]
    site.links = lambda page: articles if page == 0 else []
    assert start("incremental", "news").paths() == {"/1": 1, "/2": 1, "/3": 1}
    articles += [4, 5]
    assert start("incremental", "news").paths() == {"/4": 1, "/5": 1}
    assert site.requested.count("/0") == 2
