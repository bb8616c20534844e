"""Each suite runs with tiny numbers, and leaves nothing on a server that it was given."""

from __future__ import annotations

import doctest
import json
from importlib import import_module

import pytest
import redis

from bloomlock.server import PrivateServer

pytestmark = pytest.mark.processes
TINY = ("--repetitions", "2", "--items", "20", "--quick")


@pytest.fixture(scope="module")
def server():
    with PrivateServer(port=0) as private:
        yield private


@pytest.fixture
def url(server):
    """Options for a server that must be as empty afterwards as it was."""
    yield "--url", server.tcp_url
    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0, "nothing may be left on a server that was given"
        assert client.config_get("appendonly") == {"appendonly": "no"}


def site(folder):
    folder.mkdir()
    (folder / "index.html").write_text('<a href="a.html">a</a> <a href="a.html#x">again</a>')
    (folder / "a.html").write_text('<a href="a.html">a</a> <a href="b.html">b</a>')
    return folder


def test_run_and_report(tmp_path, benchmarks, url):
    names = ("atomic", "sadd", "async-atomic")
    chosen = [word for name in names for word in ("--contender", name)]
    counts = ("--processes", "1", "--processes", "2", "--site", str(site(tmp_path / "a site")))
    where = ("--results", str(tmp_path / "results"))
    suites = ("single", "clients", "tasks", "replay", "memory")
    benchmarks("run", *suites, *TINY, *chosen, *counts, *where, *url)
    rows, sites = {}, set()
    for suite in suites[:-1]:
        found = json.loads((tmp_path / "results" / f"{suite}.json").read_text())["rows"]
        for row in found:
            assert len(row["rates"]) == len(row["server"]) == len(row["p99"]) == 2
            assert min(row["rates"]) > 0
            assert row["wrong"] == 0, row
            sites.add(row.get("site"))
            if row["workload"] == "new":
                rows[suite, row["contender"], row["operation"], row["processes"]] = row
    # 15 bytes of command, the item's 40, and the key's: more than an item, less than five.
    assert all(50 < sent < 200 for sent in rows["single", "sadd", "add", 1]["to_server"])
    assert rows["clients", "atomic", "add", 2]["items"] == 40
    assert "a site (4 links, 50.0% repeats)" in sites
    docs = tmp_path / "docs"
    benchmarks("report", *where, "--docs", str(docs))
    page = (docs / "benchmarks.md").read_text()
    assert all(f"## {suite}\n" in page for suite in suites)
    assert "| SADD / SISMEMBER | 1.00 |" in page
    assert str(tmp_path) not in page


@pytest.mark.parametrize(
    ("suite", "contenders", "more", "title"),
    [
        ("batch", ("bitmap", "sadd-count", "sadd-exact"), (), ""),
        ("busy", ("atomic", "lua", "sadd"), (), "50 connections"),
        ("winners", ("atomic", "sadd"), ("--processes", "2"), "2 processes offer the same 20 item"),
        ("micro", ("locate",), (), "20 offsets of an item"),
        ("log", ("sadd", "lua"), (), ""),
    ],
)
def test_a_suite_runs_and_nothing_is_wrong(benchmark, url, suite, contenders, more, title):
    given = url if suite == "log" else ()
    out, result = benchmark(suite, contenders, *TINY, *more, *given)
    assert result["rows"]
    for row in result["rows"]:
        assert row.get("wrong", 0) == row.get("none", 0) == row.get("several", 0) == 0, row
    assert title in out


def test_through_the_delaying_proxy(benchmark, monkeypatch):
    # tests/benchmarks/test_parts.py has a delay that is found by trying.
    monkeypatch.setattr(import_module("benchmarks.delay_proxy"), "TRIES", 1)
    _, result = benchmark("rtt", ("shards-16",), *TINY)
    assert {row["round_trip_ms"] for row in result["rows"]} == {0.0, 0.5}
    assert all(row["wrong"] == 0 for row in result["rows"])


def test_dedup(benchmark):
    out, result = benchmark("dedup", (), "--items", "3000", "--repetitions", "1")
    rows = {row["title"]: row for row in result["rows"]}
    assert rows["sort -u"]["written"] == rows["bloomlock dedup"]["written"] == 1500
    assert rows["bloomlock dedup, server"]["memory"][0] > 0
    assert "1,500 different" in out


def test_losses(benchmark, url):
    _, result = benchmark("losses", ("atomic", "sadd"), "--items", "200", *url)
    new, raising, retried, _ = result["rows"]
    for row in result["rows"]:
        assert row["lost_before"] + row["lost_after"] >= 10
    assert (new["lost"], new["raised"], raising["lost"]) == (0, 0, 0)
    assert raising["raised"] > 0
    # A client that retries by itself is told "already there" by its own first try.
    assert retried["lost"] == retried["lost_after"] > 0


def test_scale(benchmark):
    parts = ("stream", "moving")
    _, result = benchmark("scale", parts, "--items", "2000", "--repetitions", "1")
    assert [len(result[part]) for part in parts] == [4, 1]
    assert all(row["wrong"] == 0 for row in result["stream"])
    (moving,) = result["moving"]
    assert moving["one_winner"] == moving["items"] == 2000
    assert moving["denied"] == 0


def test_claims(benchmark, url):
    names = ("claims", "lock-sadd", "ping-bytes")
    small = ("--repetitions", "1", "--items", "20", "--processes", "2")
    _, result = benchmark("claims", names, *small, *url)
    assert {row["wrong"] for row in result["rows"]} == {0}
    rows = {
        (row["contender"], row["operation"]): row["round_trips"]
        for row in result["rows"]
        if not row["round_trip_ms"]
    }
    # Round trips of: claim and commit, claim a seen one.
    for name, (new, seen) in {"claims": (2, 1), "lock-sadd": (5, 1)}.items():
        assert (rows[name, "add"], rows[name, "exists"]) == ([new], [seen]), name
    ours, *others = result["rig"]
    assert (ours["done"], ours["open"], ours["finished_twice"]) == (20, 0, 0)
    assert others
    assert all(row["done"] == 20 for row in others)


def test_locks(benchmark, url):
    names = ("Lock", "FairLock", "AsyncLock", "redis-py", "python-redis-lock", "ping-bytes")
    small = ("--repetitions", "1", "--items", "10", "--seconds", "0.3")
    counts = ("--processes", "1", "--processes", "3", "--hold", "1")
    out, result = benchmark("locks", names, *small, *counts, *url)
    rows = {(row["contender"], row["clients"]): row for row in result["rows"]}
    for (name, _), row in rows.items():
        if name != "ping-bytes":
            assert (row["twice"], row["errors"]) == (0, {})
    # SET NX and a script of GET and DEL for each grant: the monitor's own INFO is not counted.
    assert rows["redis-py", 1]["round_trips"] == [2.0]
    assert rows["redis-py", 1]["commands"] == [4.0]
    assert "3 clients on one lock, held 1 ms" in out


@pytest.mark.parametrize("name", ["figures", "locks_figures", "scale_jobs", "workloads"])
def test_examples(name):
    assert doctest.testmod(import_module(f"benchmarks.{name}")).failed == 0
