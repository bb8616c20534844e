"""The example projects do what they say, as a user starts them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from crawling import Process, Runner, Site

    Start = Callable[..., Process]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(
    crawls: Runner, site: Site, valkey: str, tmp_path: Path
) -> Callable[[str, str], Counter[str]]:
    """Run the crawl of an example on the site; returns the paths of its items."""
    items = tmp_path / "items.jsonl"

    def run(example: str, spider: str) -> Counter[str]:
        # A slow machine is no outage.
        settings = ("-s", "ROBOTSTXT_OBEY=False", "-s", 'BLOOMLOCK_FILTER={"timeout": 60}')
        words = ("crawl", spider, "-a", f"url={site.url}/0", "-O", str(items), *settings)
        environment = {"REDIS_URL": valkey, "BLOOMLOCK_URL": valkey}
        result = crawls.command(EXAMPLES / example, *words, **environment).finish()
        assert result.code == 0, result.log
        assert "ERROR" not in result.log, result.log
        found = map(json.loads, items.read_text().splitlines())
        return Counter(urlsplit(item["url"]).path for item in found)

    return run


@pytest.mark.parametrize("example", ["plain", "cluster"])
def test_a_site(example: str, run: Callable[..., Counter[str]], site: Site, r: redis.Redis) -> None:
    # As with Scrapy alone, a link to the start page is fetched once more.
    assert run(example, "site") == Counter([*site.paths, "/0"])
    assert r.keys("*") == [b"{site}:crawl"]


def test_incremental(run: Callable[..., Counter[str]], site: Site) -> None:
    articles = [1, 2, 3]
    site.links = lambda page: articles if page == 0 else []
    assert run("incremental", "news") == Counter(["/1", "/2", "/3"])
    articles += [4, 5]
    assert run("incremental", "news") == Counter(["/4", "/5"])
    assert site.requested.count("/0") == 2
