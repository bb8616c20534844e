"""The main job on a small folder: real workers, exact counts, and what happens when one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from servers import exists, wait_until

from bloomlock import BloomFilter, ConfigurationError, ServerError
from bloomlock.cli.crawl import _print
from scrapy_ext.crawl.job import JobOptions, run
from scrapy_ext.crawl.stats import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from scrapy_ext.crawl.stats import Progress

PAGES = 24
# The index and every page link to every page twice, to the index, to a page that is not there,
# and to another site.
LINKS = 2 * PAGES + 2
SETTLED = ("page", "refused", "failed")
COMMAND = "from bloomlock.cli.crawl import crawl_command; crawl_command()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    links = "".join(f'<a href="{page}.html#part">{page}</a>' for page in [*range(PAGES)] * 2)
    more = '<a href="/">up</a><a href="gone.html">?</a><a href="http://127.0.0.1:1/">away</a>'
    body = f"<html><body>{links}{more}</body></html>"
    for name in ["index", *range(PAGES)]:
        tmp_path.joinpath(f"{name}.html").write_text(body)
    return tmp_path


def command(folder: Path, url: str, *options: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, str(folder), "--url", url, "--json", *options]


def test_every_page_once_and_none_missed(folder: Path, valkey: str, r: redis.Redis) -> None:
    done = subprocess.run(
        command(folder, valkey, "--workers", "2"), capture_output=True, timeout=300, check=False
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert report["pages"] == PAGES + 1
    # Each of the two workers offers the first page as well.
    assert report["links"] == (PAGES + 1) * LINKS + 2
    assert report["distinct"] == PAGES + 2
    assert report["duplicates"] == report["links"] - report["distinct"]
    assert report["twice"] == report["missed"] == report["failures"] == []
    assert [url.rpartition("/")[2] for url in report["refused"]] == ["gone.html"]
    assert report["lost"] == report["queued"] == report["earlier"] == 0
    assert 0 < report["filter_bytes"] < 8000
    assert report["set_bytes"] > 26 * 40
    assert r.keys() == []


def rows_of(table: str) -> dict[str, str]:
    """Return the first two cells of each row."""
    cells = [line.split("│") for line in table.splitlines()]
    return {row[1].strip(): row[2].strip() for row in cells if len(row) > 3}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    urls = [f"http://127.0.0.1/{letter * 300}.html" for letter in "abc"]
    report = Report("x", 1, pages=25, links=1200, missed=urls, twice=urls)
    _print(report)
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert rows["pages fetched"] == "25"
    assert rows["links checked"] == "1,200"
    assert rows["pages fetched twice"] == rows["pages missed"] == "3"
    # They are not cut in a pipe.
    lines = [line for line in out.splitlines() if "pages fetched twice" in line or "missed" in line]
    assert [sum(url in line for url in urls) for line in lines] == [3, 3]


def test_a_named_crawl_is_gone_on_with(folder: Path, valkey: str, r: redis.Redis) -> None:
    options = {"source": str(folder), "workers": 2, "url": valkey, "name": "docs"}
    first = run(JobOptions(**options, max_pages=5, delay=0.1, concurrency=2))
    assert 5 <= first.pages < PAGES
    assert first.ok
    assert first.queued == PAGES + 2 - first.pages - len(first.refused)
    second = run(JobOptions(**options))
    assert second.ok
    assert first.pages + second.pages == PAGES + 1
    assert second.queued == 0
    assert second.earlier == first.pages
    assert second.taken_over == first.queued
    assert second.notes == []
    assert BloomFilter.open("docs", client=r).count() == PAGES + 2
    assert [key for key in r.scan_iter() if b":crawl:" in key] == []
    options["workers"] = 1
    third = run(JobOptions(**options))
    assert third.ok
    assert third.pages == 0
    assert third.notes == [
        "nothing is left of the crawl 'docs': it has met all links it found; --restart begins anew"
    ]
    anew = run(JobOptions(**options, restart=True))
    assert anew.ok
    assert (anew.pages, anew.taken_over, anew.earlier, anew.notes) == (PAGES + 1, 0, 0, [])


def test_the_others_do_what_a_killed_worker_had(
    folder: Path,
    valkey: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path_factory.mktemp("journals")
    monkeypatch.setattr("tempfile.tempdir", str(place))

    def kill_a_busy_one(progress: Progress) -> None:
        # With two pages done and more in the queue it has others in flight.
        for number, pid in enumerate(progress.pids):
            journals = place.glob(f"*/worker-{number}.journal")
            pages = sum(journal.read_text().count('"kind": "page"') for journal in journals)
            if pages >= 2 and progress.queued >= 4 and not killed:
                killed.append((number, pid))
                os.kill(pid, signal.SIGKILL)

    killed: list[tuple[int, int]] = []
    options = JobOptions(str(folder), workers=2, url=valkey, delay=0.2, concurrency=4)
    report = run(options, kill_a_busy_one)
    assert report.ok
    ((number, pid),) = killed
    dead, put_back = report.notes
    assert dead == f"worker {number} (process {pid}) was killed by signal 9"
    assert "in flight when a worker died" in put_back
    assert 1 <= len(report.put_back) < PAGES
    assert report.pages == PAGES + 1
    assert len(report.refused) == 1
    assert report.twice == report.missed == report.failures == []


def test_workers_that_cannot_start_fail_the_job(
    folder: Path, valkey: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    broken = tmp_path_factory.mktemp("path")
    broken.joinpath("scrapy_redis.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    report = run(JobOptions(str(folder), workers=1, url=valkey))
    assert not report.ok
    assert report.pages == 0
    assert len(report.failures) == 1
    assert report.failures[0].endswith("ended with status 1: RuntimeError: a broken installation")


def test_workers_that_do_not_get_on_are_given_up(folder: Path, valkey: str) -> None:
    # A worker that may fetch less than nothing at the same time waits for ever.
    report = run(JobOptions(str(folder), workers=1, url=valkey, concurrency=-1, stall_timeout=1.5))
    assert not report.ok
    assert report.failures[0] == "no worker has made progress for 1.5 s; given up"
    assert report.failures[1].endswith("still ran at the end and was killed")


@pytest.fixture
def running(
    folder: Path,
    valkey: str,
    r: redis.Redis,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """A job that has fetched some pages and is far from its end; with its workers' ids."""
    options = ["--workers", "2", "--delay", "1", "--concurrency", "1", "--name", "kept"]
    # A job that is killed cannot remove its journals.
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("journals")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    process = subprocess.Popen(command(folder, valkey, *options), stdout=subprocess.PIPE)
    wait_until(lambda: r.llen("bloomlock:crawl:kept:queue") > 0, 120)
    tasks = Path(f"/proc/{process.pid}/task")
    if not tasks.exists():
        pytest.skip("the children of a process cannot be told here")
    lines = [path.read_text() for path in tasks.glob("*/children")]
    children = [int(child) for line in lines for child in line.split()]
    assert len(children) == 2
    yield process, children
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_what_there_is(number: signal.Signals, running: Any) -> None:
    process, children = running
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    report = json.loads(out)
    assert process.returncode == 130
    assert report["interrupted"]
    assert report["pages"] >= 1
    assert report["queued"] >= 1
    assert report["missed"] == report["twice"] == report["failures"] == []
    assert not any(exists(child) for child in children)


def test_a_job_that_was_killed_goes_on(
    running: Any, folder: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, children = running
    options = JobOptions(str(folder), workers=2, url=valkey, name="kept")
    with pytest.raises(ConfigurationError, match="workers of a crawl of this name run"):
        run(replace(options, restart=True))
    process.kill()
    wait_until(lambda: not any(exists(child) for child in children), 120)
    place = Path(os.environ["TMPDIR"])

    @contextmanager
    def kept(prefix: str) -> Iterator[str]:
        place.joinpath(f"{prefix}again").mkdir()
        yield str(place / f"{prefix}again")

    monkeypatch.setattr("tempfile.TemporaryDirectory", kept)
    report = run(options)
    assert report.ok
    assert report.pages < PAGES + 1, "what was done before the kill is not done again"
    assert report.failed == {}
    assert report.notes == []
    # The site dies with its job, so all pages that workers had in flight failed then.
    journals = [path.read_text() for path in place.glob("*/worker-*.journal")]
    events = [json.loads(line) for journal in journals for line in journal.splitlines()]
    kinds = {event["url"]: event["kind"] for event in events if event["kind"] in SETTLED}
    assert sorted(kinds.values()) == ["page"] * (PAGES + 1) + ["refused"]


def test_the_server_dies(folder: Path) -> None:
    from bloomlock.server import PrivateServer  # noqa: PLC0415 - only here

    def kill_the_server(progress: Progress) -> None:
        if progress.pages >= 2:
            server.stop()

    with PrivateServer() as server:
        options = JobOptions(str(folder), workers=1, url=server.url, delay=0.1, concurrency=2)
        report = run(options, kill_the_server)
    assert not report.ok
    assert any("the Redis server failed" in failure for failure in report.failures)


class Elsewhere(SimpleHTTPRequestHandler):
    """A site of another server, with a page that has moved there and one that left."""

    moved: ClassVar = {"/1.html": "/moved/1.html", "/2.html": "https://www.example.org/2.html"}

    def do_GET(self) -> None:
        if self.path not in self.moved:
            return super().do_GET()
        self.send_response(301)
        self.send_header("Location", self.moved[self.path])
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_a_site_of_another_server(tmp_path: Path, valkey: str) -> None:
    tmp_path.joinpath("robots.txt").write_text("User-agent: *\nDisallow: /private.html\n")
    names = ["1.html", "2.html", "private.html"]
    links = "".join(f'<a href="{name}">{name}</a>' for name in names)
    tmp_path.joinpath("moved").mkdir()
    for name in ["index.html", "private.html", "moved/1.html"]:
        tmp_path.joinpath(name).write_text(f"<html><body>{links}</body></html>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Elsewhere, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        report = run(JobOptions(url, workers=1, url=valkey))
        server.shutdown()
    assert report.ok
    # The page that has moved counts, and so does the one it has moved to, whose links are to
    # moved/2.html and moved/private.html, which are not there.
    assert report.pages == 3
    assert report.refused[f"{url}/2.html"] == "redirects to https://www.example.org/2.html"
    assert "robots.txt" in report.refused[f"{url}/private.html"]
    assert sorted(why for why in report.refused.values() if "status" in why) == ["status 404"] * 2


@pytest.mark.parametrize("source", ["no such folder", "ftp://host/", "http://"])
def test_a_source_that_is_none(source: str, valkey: str) -> None:
    with pytest.raises(ConfigurationError, match="SOURCE is"):
        run(JobOptions(source, url=valkey))


def test_a_server_that_is_none(folder: Path) -> None:
    with pytest.raises(
        ServerError, match=r"no Redis server answers at redis://\*\*\*@127\.0\.0\.1:1/0"
    ):
        run(JobOptions(str(folder), url="redis://:secret@127.0.0.1:1/0"))


def test_without_scrapy_one_sentence() -> None:
    hide = f"import sys; sys.modules['scrapy'] = None; {COMMAND}"
    done = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'bloomlock[scrapy]'" in done.stderr


def crawl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bloomlock.cli", "crawl", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("http://127.0.0.1:1/", "Connection was refused"),
        ("http://no-such-host.invalid/", "DNS lookup failed"),
        ("{}/gone", "status 404"),
        ("{}/2.html", "redirects to https://www.example.org/2.html"),
    ],
)
def test_a_start_page_that_is_not_available(
    tmp_path: Path, valkey: str, r: redis.Redis, start: str, why: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Elsewhere, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = start.format(f"http://127.0.0.1:{server.server_port}")
        report = run(JobOptions(url, url=valkey, workers=1, robots=False))
        server.shutdown()
    assert not report.ok
    (failure,) = report.failures
    assert failure.startswith(f"the start page {url} could not be fetched: {why}")
    assert "\n" not in failure
    assert r.keys() == []


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["no such folder"], 2, "SOURCE is 'no such folder'"),
        ([".", "--restart"], 2, "--restart needs --name"),
        ([".", "--workers", "0"], 2, "Invalid value for '--workers'"),
        (["--url", "http://host"], 2, "--url must be a URL that starts with"),
        ([".", "--capacity", "1", "--error-rate", "1e-300"], 2, "error_rate must be"),
        (
            [".", "--url", "redis://:secret@127.0.0.1:1"],
            1,
            "no Redis server answers at redis://***@",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    valkey: str, arguments: list[str], status: int, sentence: str
) -> None:
    done = crawl(*arguments, BLOOMLOCK_URL=valkey)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(f"bloomlock: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_worker_that_fails_at_start_says_why(
    folder: Path, valkey: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broken = tmp_path_factory.mktemp("path")
    broken.joinpath("sitecustomize.py").write_text(
        "import sys\n"
        "if 'scrapy_ext.crawl.worker' in ' '.join(sys.orig_argv):\n"
        "    import scrapy_ext.scheduler\n"
        "    def fail(*_):\n"
        "        raise RuntimeError('nothing to connect to')\n"
        "    scrapy_ext.scheduler.redis_client = fail\n"
    )
    done = crawl(str(folder), "--url", valkey, "--workers", "1", PYTHONPATH=str(broken))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("bloomlock: worker 0 ")
    assert line.endswith(
        "ended with status 1: the spider ended by itself: RuntimeError: nothing to connect to"
    )
    assert rows_of(done.stdout)["pages fetched"] == "0"


def test_the_pages_are_rendered_with_a_word(valkey: str, tmp_path: Path) -> None:
    few = tmp_path / "sitecustomize.py"
    few.write_text(
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "import scrapy_ext.crawl.render as pages\n"
        "pages._harmless = lambda: {'abc', 'array'}\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    arguments = ("--url", valkey, "--workers", "1", "--json")
    done = crawl(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pages"] == 3
    assert done.stderr == (
        "rendering 2 pages of documentation, once for this Python; it takes about half a minute\n"
    )
    # The second time there is nothing to render.
    again = "from scrapy_ext.crawl.render import pydoc_site; print(pydoc_site(print))"
    printed = subprocess.run(
        [sys.executable, "-c", again],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    assert len(printed.stdout.splitlines()) == 1
