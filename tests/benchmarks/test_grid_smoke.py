"""The grids run with tiny numbers, and a page is made of what they wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from bloomlock.server import PrivateServer

TINY = ("--repetitions", "2", "--items", "20", "--quick")


def rows_of(folder, suite) -> dict[tuple[str, ...], Any]:
    rows = json.loads((folder / f"{suite}.json").read_text())["rows"]
    names = ("contender", "operation", "workload", "processes", "tasks")
    return {tuple(row[name] for name in names): row for row in rows}


@pytest.mark.processes
def test_run_and_report(tmp_path, module):
    names = ("atomic", "near-cache", "sadd", "bf", "async-atomic", "async-sadd", "memory", "ping")
    chosen = [word for name in names for word in ("--contender", name)]
    counts = ("--processes", "1", "--processes", "2")
    where = ("--results", str(tmp_path))
    with PrivateServer(port=0) as server:
        url = ("--url", server.tcp_url)
        suites = ("single", "clients", "tasks", "replay", "local", "memory")
        out = module("benchmarks", "run", *suites, *TINY, *chosen, *counts, *where, *url)
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    assert "not available" in out
    for suite in suites[:-1]:
        for key, row in rows_of(tmp_path, suite).items():
            assert len(row["rates"]) == len(row["server"]) == len(row["p99"]) == 2
            assert min(row["rates"]) > 0
            assert row["wrong"] == 0 or key[0] == "ping"
    single = rows_of(tmp_path, "single")
    # 15 bytes of command, the item's 40, and the key's: more than an item, less than five.
    assert all(50 < sent < 200 for sent in single["sadd", "add", "new", 1, 0]["to_server"])
    assert rows_of(tmp_path, "clients")["atomic", "add", "new", 2, 0]["items"] == 40
    assert rows_of(tmp_path, "tasks")["async-atomic", "tasks", "new", 1, 1000]["items"] == 20
    assert rows_of(tmp_path, "local")["memory", "update", "new", 1, 0]["items"] == 20

    docs = tmp_path / "docs"
    module("benchmarks", "report", *where, "--docs", str(docs))
    page = (docs / "benchmarks.md").read_text()
    for suite in suites:
        assert f"## {suite}\n" in page
    assert "| SADD / SISMEMBER | 1.00 (" in page
    assert str(tmp_path) not in page
    for drawn in ("clients", "tasks"):
        assert f"(benchmarks/{drawn}.svg)" in page
        assert "<svg" in (docs / "benchmarks" / f"{drawn}.svg").read_text()


@pytest.mark.processes
def test_through_the_delaying_proxy(benchmark):
    _, result = benchmark("rtt", ("ping", "near-cache"), *TINY)
    trips = {row["round_trip_ms"] for row in result["rows"]}
    assert trips == {0.0, 0.5}
    assert all(row["wrong"] == 0 for row in result["rows"] if row["contender"] != "ping")


@pytest.mark.processes
def test_batches(benchmark):
    _, result = benchmark("batch", ("atomic", "bitmap", "sadd-count"), *TINY)
    rows = {(row["contender"], row["operation"]): row for row in result["rows"]}
    assert rows["bitmap", "update"]["batch"] == 20
    assert all(row["wrong"] == 0 for row in rows.values())
    assert ("sadd-count", "exists_many") not in rows


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
