"""The engine's suites run with tiny numbers, and a page is made of what they wrote."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import redis

from bloomlock.server import PrivateServer

TINY = ("--repetitions", "2", "--items", "20", "--quick")


def site(folder):
    folder.mkdir()
    (folder / "index.html").write_text('<a href="a.html">a</a> <a href="a.html#x">again</a>')
    (folder / "a.html").write_text('<a href="a.html">a</a> <a href="b.html">b</a>')
    return folder


def rows_of(folder, suite) -> dict[tuple[str, ...], Any]:
    rows = json.loads((folder / f"{suite}.json").read_text())["rows"]
    names = ("contender", "operation", "workload", "processes", "tasks")
    return {tuple(row[name] for name in names): row for row in rows}


@pytest.mark.processes
def test_run_and_report(tmp_path, benchmarks):
    names = ("atomic", "sadd", "set-sadd", "sadd-socket", "bf", "async-atomic", "glide", "memory")
    chosen = [word for name in names for word in ("--contender", name)]
    counts = ("--processes", "1", "--processes", "2", "--site", str(site(tmp_path / "a site")))
    where = ("--results", str(tmp_path / "results"))
    with PrivateServer(port=0) as server:
        url = ("--url", server.tcp_url)
        suites = ("single", "clients", "tasks", "replay", "local", "memory")
        out = benchmarks("run", *suites, *TINY, *chosen, *counts, *where, *url)
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    folder = tmp_path / "results"
    assert "not available" in out
    for suite in suites[:-1]:
        for key, row in rows_of(folder, suite).items():
            assert len(row["rates"]) == len(row["server"]) == len(row["p99"]) == 2
            assert min(row["rates"]) > 0
            assert row["wrong"] == 0, key
    single = rows_of(folder, "single")
    # 15 bytes of command, the item's 40, and the key's: more than an item, less than five.
    assert all(50 < sent < 200 for sent in single["sadd", "add", "new", 1, 0]["to_server"])
    assert rows_of(folder, "clients")["atomic", "add", "new", 2, 0]["items"] == 40
    assert rows_of(folder, "tasks")["async-atomic", "tasks", "new", 1, 1000]["items"] == 20
    assert rows_of(folder, "local")["memory", "update", "new", 1, 0]["items"] == 20

    (link, *_) = json.loads((folder / "replay.json").read_text())["rows"]
    assert link["site"] == "a site (4 links, 50.0% repeats)"

    docs = tmp_path / "docs"
    benchmarks("report", *where, "--docs", str(docs))
    page = (docs / "benchmarks.md").read_text()
    for suite in suites:
        assert f"## {suite}\n" in page
    assert "| SADD / SISMEMBER | 1.00 |" in page
    assert "µs of server + client processor for an item**" in page
    assert str(tmp_path) not in page


@pytest.mark.processes
def test_through_the_delaying_proxy(benchmark, monkeypatch):
    # tests/benchmarks/test_parts.py has a delay that is found by trying.
    monkeypatch.setattr(importlib.import_module("benchmarks.delay_proxy"), "TRIES", 1)
    _, result = benchmark("rtt", ("near-cache", "shards-16"), *TINY)
    trips = {row["round_trip_ms"] for row in result["rows"]}
    assert trips == {0.0, 0.5}
    assert all(row["wrong"] == 0 for row in result["rows"])


@pytest.mark.processes
def test_batches(benchmark):
    _, result = benchmark("batch", ("bitmap", "sadd-count", "sadd-exact"), *TINY)
    rows = {(row["contender"], row["operation"]): row for row in result["rows"]}
    assert rows["bitmap", "update"]["batch"] == 20
    assert all(row["wrong"] == 0 for row in rows.values())
    assert ("sadd-count", "exists_many") not in rows
    assert rows["sadd-exact", "add_many"]["rates"]


@pytest.mark.processes
def test_dedup(benchmark):
    out, result = benchmark("dedup", (), "--items", "3000", "--repetitions", "1")
    rows = {row["title"]: row for row in result["rows"]}
    assert rows["sort -u"]["written"] == rows["bloomlock dedup"]["written"] == 1500
    assert rows["bloomlock dedup, server"]["memory"][0] > 0
    assert "1,500 different" in out


@pytest.mark.processes
def test_micro(benchmark):
    _, result = benchmark("micro", ("locate",))
    (row,) = result["rows"]
    assert row["title"] == "hashing: 20 offsets of an item"
    assert min(row["values"]) > 0


@pytest.mark.processes
def test_the_server_alone(benchmark):
    out, result = benchmark("busy", ("atomic", "lua", "sadd"), "--repetitions", "2")
    rows = {row["contender"]: row for row in result["rows"]}
    # SADD, the key and the item; an atomic add has more than a word for each of its bits.
    assert 90 < rows["sadd"]["to_server"] < 150 < rows["lua"]["to_server"]
    assert rows["lua"]["to_server"] < 250 < rows["atomic"]["to_server"]
    assert all(min(row["server"]) > 0 and max(row["busy"]) < 1.5 for row in rows.values())
    assert "50 connections" in out


@pytest.mark.processes
def test_bytes_in_the_log(benchmark):
    with PrivateServer(port=0) as server:
        _, result = benchmark("log", ("sadd", "lua-blocked"), "--url", server.tcp_url)
        with redis.Redis.from_url(server.url) as client:
            assert client.config_get("appendonly") == {"appendonly": "no"}
            assert client.dbsize() == 0
    rows = {row["contender"]: row for row in result["rows"]}
    assert 60 < rows["sadd"]["add"] < rows["lua-blocked"]["add"] < 300
