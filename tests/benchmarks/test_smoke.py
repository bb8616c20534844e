"""Each suite runs with tiny numbers and prints and writes what it measured."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest
import redis

from bloomlock.server import PrivateServer


@pytest.mark.processes
def test_winners(benchmark):
    out, result = benchmark("winners", ("atomic", "sadd"), "--items", "300", "--processes", "3")
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        assert (row["winners"], row["none"], row["several"]) == (300, 0, 0)
    assert "3 processes offer the same 300 items" in out


@pytest.mark.processes
def test_losses(benchmark):
    with PrivateServer(port=0) as server:
        _, result = benchmark(
            "losses", ("atomic", "sadd"), "--items", "200", "--url", server.tcp_url
        )
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    new, raising, retried, _ = result["rows"]
    for row in result["rows"]:
        assert row["lost_before"] + row["lost_after"] >= 10
    assert (new["lost"], new["raised"]) == (0, 0)
    assert raising["lost"] == 0
    assert raising["raised"] > 0
    # A client that retries by itself is told "already there" by its own first try.
    assert retried["lost"] == retried["lost_after"] > 0


@pytest.mark.processes
def test_scale_parts(benchmark):
    parts = ("stream", "masters", "moving")
    out, result = benchmark("scale", parts, "--items", "2000", "--repetitions", "1")
    assert result["rows"] == []
    assert [len(result[part]) for part in parts] == [4, 6, 1]
    assert all(row["wrong"] == 0 for part in parts[:2] for row in result[part])
    (moving,) = result["moving"]
    assert moving["one_winner"] == moving["items"] == 2000
    assert moving["denied"] == 0
    assert "over 111,200" in out


def test_scale_of_growth(benchmark):
    out, result = benchmark("scale", ("growth",), "--quick", "--repetitions", "1")
    *rows, errors = result["growth"]
    assert len(rows) == 24
    assert errors["false_negatives"] == 0
    assert errors["slices"] == 4
    assert errors["false_positives"] <= 1.2 * errors["error_rate"] * errors["asked"]
    assert "rate measured" in out


def test_scale_of_forgotten_items(benchmark):
    out, result = benchmark("scale", ("forgotten",), "--items", "2000", "--repetitions", "1")
    first, *others = result["forgotten"]
    assert (first["discarded"], first["left"], first["lost"]) == (2000, 0, 0)
    assert 0 < first["bytes"] < 200
    assert len(others) == 4
    assert "others lost" in out


@pytest.mark.parametrize("name", ["figures", "locks_figures", "scale_jobs", "workloads"])
def test_examples(name):
    assert doctest.testmod(import_module(f"benchmarks.{name}")).failed == 0
