"""Each suite runs with tiny numbers and prints and writes what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from bloomlock.server import PrivateServer

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def benchmark(
    tmp_path: Path, suite: str, contenders: tuple[str, ...], *more: str
) -> tuple[str, dict[str, Any]]:
    file = tmp_path / "result.json"
    chosen = [word for name in contenders for word in ("--contender", name)]
    out = run("benchmarks", suite, "--quick", "--json", str(file), *chosen, *more)
    return out, json.loads(file.read_text())


@pytest.mark.processes
def test_speed(tmp_path: Path) -> None:
    out, result = benchmark(
        tmp_path,
        "speed",
        ("atomic", "sadd", "ping"),
        *("--repetitions", "2", "--items", "20", "--error-rate", "0.001"),
        *("--processes", "1", "--processes", "2"),
    )
    rows = {(row["contender"], row["operation"], row["processes"]): row for row in result["rows"]}
    assert len(rows) == 3 * 3 * 2
    for row in rows.values():
        assert len(row["rates"]) == 2
        assert all(rate > 0 for rate in row["rates"])
    assert rows["sadd", "exists", 2]["items"] == 2 * 2 * 20
    assert rows["sadd", "exists", 2]["wrong"] == 0
    assert "add, 2 client processes" in out
    assert "rate / SISMEMBER" in out


@pytest.mark.processes
def test_winners(tmp_path: Path) -> None:
    out, result = benchmark(
        tmp_path, "winners", ("atomic", "sadd"), "--items", "300", "--processes", "3"
    )
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        assert (row["winners"], row["none"], row["several"]) == (300, 0, 0)
    assert "3 processes offer the same 300 items" in out


@pytest.mark.processes
def test_losses(tmp_path: Path) -> None:
    with PrivateServer(port=0) as server:
        _, result = benchmark(
            tmp_path, "losses", ("atomic", "sadd"), "--items", "200", "--url", server.tcp_url
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


def test_ratios() -> None:
    run("doctest", "benchmarks/ratios.py")
