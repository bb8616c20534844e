"""`bloomlock crawl` as a whole: each page once by all workers, none missed, whoever dies."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner
from crawling import PATIENCE
from private import PrivateServer

from bloomlock.cli import cli, main
from scrapy_ext.crawl.pydoc_pages import harmless, pydoc_pages
from scrapy_ext.crawl.worker import SiteSpider

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from crawling import Site

PAGES = 20
# The index and every page link to every page twice, to the index, to a page that is not there,
# and to another site.
LINKS = 2 * PAGES + 2


class Done(NamedTuple):
    code: int
    report: dict[str, Any]
    log: str


@pytest.fixture
def crawl(
    valkey: str, r: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run the command; without --url on an empty server."""
    del r
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def crawl(*words: object) -> Done:
        done = CliRunner().invoke(cli, ["crawl", *map(str, words), "--json"])
        report = json.loads(done.stdout) if done.stdout else {}
        return Done(done.exit_code, report, done.stderr)

    return crawl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    links = "".join(f'<a href="{page}.html#part">{page}</a>' for page in [*range(PAGES)] * 2)
    more = '<a href="/">up</a><a href="gone.html">?</a><a href="http://127.0.0.1:1/">away</a>'
    body = f"<html><body>{links}{more}</body></html>"
    made = tmp_path / "site"
    made.mkdir()
    for name in ["index", *range(PAGES)]:
        made.joinpath(f"{name}.html").write_text(body)
    return made


def started(*words: str, url: str) -> subprocess.Popen[bytes]:
    """Start the command as a process."""
    command = [sys.executable, "-m", "bloomlock.cli", "crawl", *words, "--url", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def workers_of(pid: int) -> list[int]:
    """Return the processes of workers that a process has started."""
    lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for line in lines for child in line.split()]
    name = b"scrapy_ext.crawl.worker"
    return [child for child in children if name in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.free_running
def test_every_page_once_and_none_missed(
    crawl: Callable[..., Done], folder: Path, r: redis.Redis
) -> None:
    code, report, log = crawl(folder, "--workers", 2)
    assert code == 0, log
    assert report["pages"] == PAGES + 1
    # Each of the two workers offers the first page as well.
    assert report["links"] == (PAGES + 1) * LINKS + 2
    assert report["distinct"] == PAGES + 2
    assert report["duplicates"] == report["links"] - report["distinct"]
    assert report["twice"] == report["missed"] == report["failures"] == report["notes"] == []
    assert [url.rpartition("/")[2] for url in report["failed"]] == ["gone.html"]
    assert report["waiting"] == 0
    assert report["filter_bytes"] > 0
    assert report["fill"] > 0
    assert r.keys() == []
    # Something is said all the time, and nothing that is no progress.
    assert all("pages (" in line for line in log.splitlines())


def test_a_named_crawl_goes_on_whatever_stopped_it(
    crawl: Callable[..., Done], site: Site, valkey: str
) -> None:
    """The only worker is killed; the command is terminated; there are pages enough."""
    site.links = lambda page: [child for child in (2 * page + 1, 2 * page + 2) if child < PAGES]
    pages = {f"/{page}" for page in range(PAGES)}
    words = (f"{site.url}/0", "--workers", "1", "--name", "kept", "--no-robots")

    def kill(count: int) -> None:
        if count == 6:
            (worker,) = workers_of(os.getpid())
            os.kill(worker, signal.SIGKILL)

    site.on_request = kill
    killed = crawl(*words, "--concurrency", 2)
    assert killed.code == 1
    assert "was killed by signal 9" in killed.log

    sent = threading.Event()
    before = len(site.requested)
    site.on_request = lambda count: count < before + 5 or sent.wait(PATIENCE)
    with started(*words, "--concurrency", "2", "--json", url=valkey) as job:
        while len(site.requested) < before + 5 and job.poll() is None:
            sent.wait(0.01)
        job.send_signal(signal.SIGTERM)
        sent.set()
        out, log = job.communicate(timeout=PATIENCE)
    assert job.returncode == 130, log
    report = json.loads(out)
    assert report["interrupted"]
    assert report["pages"] >= 1
    assert report["twice"] == report["failures"] == []
    # What the killed one was at, or had not yet told the server.
    assert len(site.requested) - len({*site.requested}) < 6

    site.on_request = None
    site.requested.clear()
    anew = crawl(*words, "--restart", "--max-pages", 5, "--concurrency", 1)
    assert site.requested[0] == "/0"
    assert 5 <= anew.report["pages"] < PAGES
    assert anew.code == 0
    assert anew.report["waiting"] > 0
    assert anew.report["missed"] is None
    last = crawl(*words)
    assert (last.code, last.report["waiting"]) == (0, 0), last.log
    assert sorted(site.requested) == sorted(pages)


def test_a_server_that_dies_ends_the_crawl(crawl: Callable[..., Done], site: Site) -> None:
    with PrivateServer() as server:
        site.on_request = lambda count: count == 3 and server.kill()
        words = ("--url", server.url, "--workers", 1, "--no-robots")
        done = crawl(f"{site.url}/0", *words)
    assert done.code == 1
    assert "the server failed" in done.log


def test_the_live_page_shows_the_figures_in_a_browser(
    site: Site, valkey: str, r: redis.Redis, tmp_path: Path
) -> None:
    """Until the browser has drawn it the crawl does not go on."""
    del r
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        if os.environ.get("CI"):
            pytest.fail("CI installs chromium")
        pytest.skip("needs chromium")
    drawn = threading.Event()
    site.links = lambda page: [1, 2, 3, 4, 5, 6, 7] if page == 0 else [0, 1]
    site.on_request = lambda count: count < 5 or drawn.wait(PATIENCE)
    words = (f"{site.url}/0", "--workers", "1", "--no-robots", "--concurrency", "1", "--watch")
    with started(*words, url=valkey) as job:
        assert job.stderr
        page = job.stderr.readline().decode().removeprefix("live figures: ").strip()
        threading.Thread(target=job.stderr.read, daemon=True).start()
        try:
            while len(site.requested) < 5 and job.poll() is None:
                drawn.wait(0.01)
            place = page.split("/")[2]
            for host, status in ((place, 200), ("evil.example", 403)):
                asked = HTTPConnection(place)
                asked.request("GET", "/figures", headers={"Host": host})
                assert asked.getresponse().status == status
                asked.close()
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000"]
            seen = subprocess.run(
                [browser, *options, f"--user-data-dir={tmp_path}", "--dump-dom", page],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=True,
            ).stdout
        finally:
            drawn.set()
        out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, out
    shown = dict(re.findall(r'<dd id="([a-z]+)">([^<]*)</dd>', seen))
    assert shown["state"] == "running"
    assert int(shown["pages"]) >= 1
    assert int(shown["links"]) >= 7
    assert f'<h1 id="title">Crawl of {site.url}/0</h1>' in seen
    assert re.search(r"<td>127\.0\.0\.1</td><td>[1-7]</td>", seen)
    assert 'points="' in seen


def test_a_site_of_another_server(
    crawl: Callable[..., Done], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = '<a href="/1">1</a><a href="/2">2</a><a href="/private">3</a>'
    answers = {
        "/robots.txt": (200, "", "User-agent: *\nDisallow: /private\n"),
        "/0": (200, "", links),
        "/1": (301, "/moved", ""),
        "/2": (301, "https://www.example.org/2", ""),
        "/moved": (200, "", links),
    }
    monkeypatch.setattr(site, "respond", lambda path: answers.get(path, (404, "", "")))
    done = crawl(f"{site.url}/0", "--workers", 1)
    # The page that has moved counts, and so does the one it has moved to.
    assert (done.code, done.report["pages"]) == (0, 3)
    failed = done.report["failed"]
    assert failed.keys() == {f"{site.url}/2", f"{site.url}/private"}
    assert failed[f"{site.url}/2"] == "redirects to https://www.example.org/2"
    assert "robots.txt" in failed[f"{site.url}/private"]
    gone = crawl(f"{site.url}/gone", "--workers", 1, "--no-robots")
    assert gone.code == 1
    assert f"the start page {site.url}/gone could not be fetched: status 404" in gone.log


def test_without_an_argument_it_crawls_the_documentation(
    crawl: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {*harmless()}
    assert {"json", "asyncio", "os"} <= names
    assert names.isdisjoint({"antigravity", "this", "idlelib", "tkinter", "turtle", "_thread"})
    monkeypatch.setattr("scrapy_ext.crawl.pydoc_pages.harmless", lambda: ["http", "os", "nt"])
    monkeypatch.setenv("A_SECRET", "not for the os page")
    done = crawl("--workers", 1)
    assert (done.code, done.report["pages"], done.report["failed"]) == (0, 3, {}), done.log
    assert done.log.startswith("rendering the documentation of Python, once: 0 of 3 pages")
    folder = pydoc_pages(pytest.fail)
    pages = {page.name: page.read_text("utf-8") for page in folder.iterdir()}
    assert pages.keys() == {"http.html", "os.html", "index.html"}
    assert folder.is_relative_to(tmp_path)
    assert "not for the os page" not in pages["os.html"]
    targets = {target for page in pages.values() for target in re.findall(r'href="([^"#]*)', page)}
    local = {target for target in targets if target and "//" not in target}
    assert local - pages.keys() == {"."}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no such folder"], "SOURCE is 'no such folder'"),
        (["ftp://host/"], "SOURCE is 'ftp://host/'"),
        ([".", "--workers", "0"], "Invalid value for '--workers'"),
        (["--url", "http://host"], "--url must be a URL that starts with"),
        ([".", "--url", "redis://:secret@127.0.0.1:1"], "no Redis server answers at redis://***@"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    valkey: str,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BLOOMLOCK_URL", valkey)
    # What the command adds goes with the test.
    monkeypatch.setattr(logging.getLogger("bloomlock"), "handlers", [])
    with pytest.raises(SystemExit) as ended:
        main(["crawl", *words])
    gc.unfreeze()
    out, log = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert sentence in log


@pytest.mark.parametrize(
    ("start", "link", "leads_to"),
    [
        ("http://a/x", "https://a/y", "https://a/y"),
        ("http://a/x", "http://A?y", "http://A?y"),
        ("http://a:81/", "http://a/", ""),
        ("http://a/", "http://b.a/", ""),
        ("http://a/", "http://ab/", ""),
        ("http://a/", "file:///a/", ""),
        ("file:///a/index.html", "file:///a/b/c.html?d#e", "file:///a/b/c.html"),
        ("file:///a/index.html", "file:///a/b/", "file:///a/b/index.html"),
        ("file:///a/index.html", "file:///", "file:///a/index.html"),
        ("file:///a/index.html", "file:///ab/c.css", "file:///a/ab/c.css"),
        ("file:///a/index.html", "http://a/", ""),
    ],
)
def test_where_a_link_leads(start: str, link: str, leads_to: str) -> None:
    assert SiteSpider(start_url=start).target(link) == leads_to
