"""The locks suite runs with tiny numbers; its figures are put together rightly."""

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
SMALL = (
    *("--repetitions", "2", "--items", "10", "--seconds", "0.3"),
    *("--processes", "1", "--processes", "3", "--hold", "0", "--hold", "1"),
)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def benchmark(
    tmp_path: Path, contenders: tuple[str, ...], *more: str
) -> tuple[str, dict[tuple[str, int, float], Any]]:
    file = tmp_path / "result.json"
    chosen = [word for name in contenders for word in ("--contender", name)]
    out = run("benchmarks", "locks", "--quick", "--json", str(file), *SMALL, *chosen, *more)
    rows = json.loads(file.read_text())["rows"]
    return out, {(row["contender"], row["clients"], row["hold"]): row for row in rows}


@pytest.mark.processes
def test_ours(tmp_path: Path) -> None:
    out, rows = benchmark(tmp_path, ("Lock", "FairLock", "AsyncLock", "ping"))
    # Alone; 1 and 3 clients and two hold times; tasks only where there are several.
    assert len(rows) == 3 + 2 * 4 + 2
    for (_, clients, _), row in rows.items():
        assert len(row["rates"]) == 2
        assert all(rate > 0 for rate in row["rates"])
        assert (row["twice"], row["errors"]) == (0, {})
        if clients > 1:
            assert all(share > 0 for share in row["handed"])
    assert "3 clients on one lock, held 1 ms" in out
    assert "not measured" in out


@pytest.mark.processes
def test_others_leave_nothing_behind(tmp_path: Path) -> None:
    others = ("redis-py", "redis-py-1ms", "redis-py-asyncio", "python-redis-lock", "ping-bytes")
    with PrivateServer(port=0) as server:
        out, rows = benchmark(tmp_path, others, "--url", server.tcp_url)
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    assert len(rows) == 3 + 3 * 4 + 2
    # SET NX and a script of GET and DEL for each grant: the monitor's own INFO is not counted.
    assert rows["redis-py", 1, 0.0]["round_trips"] == [2.0, 2.0]
    assert rows["redis-py", 1, 0.0]["commands"] == [4.0, 4.0]
    assert "rate / 2 PING" in out


def test_figures() -> None:
    run("doctest", "benchmarks/locks_figures.py")
