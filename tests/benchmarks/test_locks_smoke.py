"""The locks suite runs with tiny numbers; its figures are put together rightly."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from bloomlock.server import PrivateServer

SMALL = (
    *("--repetitions", "2", "--items", "10", "--seconds", "0.3"),
    *("--processes", "1", "--processes", "3", "--hold", "0", "--hold", "1"),
)


def by_cell(result: dict[str, Any]) -> dict[tuple[str, int, float], Any]:
    return {(row["contender"], row["clients"], row["hold"]): row for row in result["rows"]}


@pytest.mark.processes
def test_ours(benchmark):
    out, result = benchmark("locks", ("Lock", "FairLock", "AsyncLock", "ping"), *SMALL)
    rows = by_cell(result)
    # Alone; 1 and 3 clients and two hold times; tasks only where there are several.
    assert len(rows) == 3 + 2 * 4 + 2
    for (_, clients, _), row in rows.items():
        assert len(row["rates"]) == 2
        assert (row["twice"], row["errors"]) == (0, {})
        if clients > 1:
            assert all(0 <= share <= 1 for share in row["handed"])
    # In one slice of 0.3 s a busy machine may come to nothing.
    assert max(rate for row in rows.values() for rate in row["rates"]) > 0
    assert max(share for row in rows.values() for share in row["handed"]) > 0
    assert "3 clients on one lock, held 1 ms" in out


@pytest.mark.processes
def test_others_leave_nothing_behind(benchmark):
    others = ("redis-py", "redis-py-1ms", "redis-py-asyncio", "python-redis-lock", "ping-bytes")
    with PrivateServer(port=0) as server:
        out, result = benchmark("locks", others, *SMALL, "--url", server.tcp_url)
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    rows = by_cell(result)
    assert len(rows) == 3 + 3 * 4 + 2
    # SET NX and a script of GET and DEL for each grant: the monitor's own INFO is not counted.
    assert rows["redis-py", 1, 0.0]["round_trips"] == [2.0, 2.0]
    assert rows["redis-py", 1, 0.0]["commands"] == [4.0, 4.0]
    assert "rate / 2 PING" in out
