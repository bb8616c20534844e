"""The parts of the main job that need no crawl: the sums, the pages, the folder server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler
from twisted.python.failure import Failure

from scrapy_ext.crawl import workers
from scrapy_ext.crawl.frontier import dumps, loads
from scrapy_ext.crawl.render import module_names, pydoc_site
from scrapy_ext.crawl.site import TOKEN_HEADER, FolderServer
from scrapy_ext.crawl.spider import CrawlConfig, SiteSpider, same_site
from scrapy_ext.crawl.stats import CrawlStats, Journal, JournalReader, tolerated

if TYPE_CHECKING:
    from pathlib import Path


def test_the_sums_of_two_journals(tmp_path: Path) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    reader, stats = JournalReader(paths), CrawlStats()
    assert not reader.read_into(stats)
    one, two = Journal(paths[0]), Journal(paths[1])
    one.won(b"a", "/a")
    one.page(b"a", "/a", [(b"a", "/a"), (b"b", "/b"), (b"c", "/c"), (b"d", "/d"), (b"e", "/e")])
    for key, url in ((b"b", "/b"), (b"c", "/c"), (b"d", "/d")):
        one.won(key, url)
    two.page(b"b", "/b", [(b"a", "/a")])
    assert reader.read_into(stats)
    assert stats.twice() == []
    assert stats.lost(queued=["63"]) == {"64"}
    assert stats.never_new(queued=[]) == {"65"}
    one.page(b"b", "/b", [])
    two.refused(b"c", "/c", "status 404")
    two.failed(b"d", "/d", "time-out")
    two.checked, two.duplicates = 10, 7
    two.count()
    assert reader.read_into(stats)
    assert stats.twice() == ["/b"]
    assert stats.lost(queued=[]) == set()
    assert (stats.links, stats.duplicates) == ({1: 10}, {1: 7})
    two.count()
    assert not reader.read_into(stats), "counters alone are no news"


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b'{"kind": "refused", "key": "61", "url": "/a", ')
    reader, stats = JournalReader([path]), CrawlStats()
    assert not reader.read_into(stats)
    with path.open("ab") as file:
        file.write(b'"why": "no"}\n')
    assert reader.read_into(stats)
    assert stats.refused == {"61": "no"}


@pytest.mark.parametrize(
    ("items", "rate", "most"), [(500, 1e-6, 0), (100_000, 1e-6, 1), (500, 0.01, 13)]
)
def test_tolerated(items: int, rate: float, most: int) -> None:
    assert tolerated(items, rate) == most


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("http://a/x", "https://a:443/y", True),
        ("http://a:81/", "http://a/", False),
        ("http://a/", "http://b.a/", False),
        ("http://A/", "http://a/", True),
    ],
)
def test_same_site(first: str, second: str, same: bool) -> None:
    assert same_site(first, second) is same


def test_a_request_survives_the_queue() -> None:
    request = Request("http://a/?q=ü", meta={"depth": 3}, dont_filter=True, priority=-1)
    stored = dumps(request.to_dict())
    assert loads(stored.encode())["meta"] == {"depth": 3}
    assert dumps(Request(**loads(stored)).to_dict()) == stored


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_page_that_fails_as_the_job_ends_is_left_to_the_next(
    tmp_path: Path, is_stopped: bool
) -> None:
    config = CrawlConfig(
        start="http://a/",
        token="",
        redis="",
        filter_name="x",
        capacity=9,
        error_rate=0.1,
        queue="x",
        workers=["w"],
        robots=False,
        concurrency=1,
        delay=0,
        throttle=False,
        timeout=1,
    )
    reader, stats = JournalReader([tmp_path / "0"]), CrawlStats()
    spider = SiteSpider.from_crawler(
        get_crawler(SiteSpider),
        config=config,
        journal=Journal(tmp_path / "0"),
        worker=0,
        is_stopped=lambda: is_stopped,
    )
    failure = Failure(ConnectionError("gone"))
    failure.request = Request("http://a/1", meta={"retry_times": 2})
    again = list(spider.failed(failure))
    reader.read_into(stats)
    assert (len(again), len(stats.failed)) == ((1, 0) if is_stopped else (0, 1))
    for request in again:
        assert (request.url, request.dont_filter, request.meta) == ("http://a/1", True, {})


HOLD = """
import sys
from scrapy_ext.crawl.workers import hold
hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_worker_is_dead_when_its_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = workers.new_workers(2)
    assert not workers.is_dead(one), "of one without a file nothing is known"
    command = [sys.executable, "-c", HOLD, one]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            assert not workers.is_dead(one)
        finally:
            process.kill()
    assert workers.is_dead(one)
    assert not workers.is_dead(two)
    assert not workers.is_dead(f"elsewhere-{one}")
    (file,) = tmp_path.rglob("*.alive")
    workers.forget_old()
    assert file.exists()
    os.utime(file, (0, 0))
    workers.forget_old()
    assert not file.exists()
    workers.forget([one, two])
    # Where there can be no file nothing is known either.
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    workers.hold(two)
    assert not workers.is_dead(two)


@pytest.mark.thorough
def test_the_pydoc_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path))
    monkeypatch.setenv("A_SECRET", "not for the os page")
    packages = ("asyncio", "json", "os")
    folder = pydoc_site(packages=packages)
    pages = {page.name: page.read_text("utf-8") for page in folder.iterdir()}
    assert {"json.html", "asyncio.events.html", "os.html"} <= pages.keys()
    assert not any("__main__" in name for name in pages)
    assert "not for the os page" not in pages["os.html"]
    targets = {target for page in pages.values() for target in re.findall(r'href="([^"#]*)', page)}
    local = {target for target in targets if target and not target.startswith("http")}
    assert local - pages.keys() == {"."}
    before = folder.stat().st_mtime_ns
    assert pydoc_site(packages=packages) == folder
    assert folder.stat().st_mtime_ns == before
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


def test_the_listed_modules_are_harmless() -> None:
    names = set(module_names())
    assert {"json", "asyncio.events", "os", "xml.dom.minidom"} <= names
    assert 400 < len(names) < 1000
    assert names.isdisjoint({"antigravity", "this", "idlelib", "tkinter", "turtle", "__main__"})
    assert not any(name.endswith(".__main__") for name in names)


def test_the_folder_is_for_those_who_know_the_token(tmp_path: Path) -> None:
    tmp_path.joinpath("index.html").write_text("hello")
    with FolderServer(tmp_path) as server:
        request = urllib.request.Request(server.url)  # noqa: S310 - our own loopback URL
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - as above
        assert refused.value.code == 403
        refused.value.close()
        request.add_header(TOKEN_HEADER, server.token)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
            assert answer.read() == b"hello"
