"""The example projects do what they say, as a user starts them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from crawling import PATIENCE, end_leases

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from crawling import Process, Runner, Site

    Start = Callable[..., Process]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def start(crawls: Runner, site: Site, valkey: str, tmp_path: Path) -> Start:
    """Start the crawl of an example on the site."""

    def start(example: str, spider: str) -> Process:
        # A slow machine is no outage.
        settings = ("-s", "ROBOTSTXT_OBEY=False", "-s", "BLOOMLOCK_TIMEOUT=60")
        words = ("crawl", spider, "-a", f"url={site.url}/0", "-O", str(tmp_path / "items.jsonl"))
        environment = {"REDIS_URL": valkey, "BLOOMLOCK_URL": valkey}
        return crawls.command(EXAMPLES / example, *words, *settings, **environment)

    return start


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Callable[[str, str], Counter[str]]:
    """Run the crawl of an example; returns the paths of its items."""

    def run(example: str, spider: str) -> Counter[str]:
        result = start(example, spider).finish()
        assert result.code == 0, result.log
        assert "ERROR" not in result.log, result.log
        items = map(json.loads, (tmp_path / "items.jsonl").read_text().splitlines())
        return Counter(urlsplit(item["url"]).path for item in items)

    return run


def test_plain(run: Callable[..., Counter[str]], site: Site, r: redis.Redis) -> None:
    assert run("plain", "site") == Counter(site.paths)
    assert r.keys("*dupefilter*") == []


def test_cluster_goes_on_without_a_process(
    run: Callable[..., Counter[str]], start: Start, site: Site, r: redis.Redis
) -> None:
    held = threading.Event()
    killed: list[Process] = []

    def kill(count: int) -> None:
        if count == 4:
            killed[0].kill()
            held.set()
        elif count > 1 and not held.is_set():
            held.wait(PATIENCE)

    site.on_request = kill
    killed.append(start("cluster", "site"))
    assert held.wait(PATIENCE)
    end_leases(r)
    # What it was fetching is fetched again.
    assert set(run("cluster", "site")) >= set(site.paths) - {"/0"}
    assert r.keys("site:requests*") == []


def test_incremental(run: Callable[..., Counter[str]], site: Site) -> None:
    articles = [1, 2, 3]
    site.links = lambda page: articles if page == 0 else []
    assert run("incremental", "news") == Counter(["/1", "/2", "/3"])
    articles += [4, 5]
    assert run("incremental", "news") == Counter(["/4", "/5"])
    assert site.requested.count("/0") == 2
