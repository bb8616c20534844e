"""The claims suite runs with tiny numbers; the round trips it counts are exact."""

from __future__ import annotations

import pytest
import redis

from bloomlock.server import PrivateServer

NAMES = ("claims", "claims-near-cache", "claims-asyncio", "idemkit", "lock-sadd", "ping-bytes")
SMALL = ("--repetitions", "1", "--items", "20", "--processes", "2")
# Round trips of: claim and commit, claim a seen one.
ROUND_TRIPS = {"claims": (2, 1), "claims-asyncio": (2, 1), "idemkit": (2, 1), "lock-sadd": (5, 1)}


@pytest.mark.processes
def test_claims(benchmark):
    with PrivateServer(port=0) as server:
        out, result = benchmark("claims", NAMES, *SMALL, "--url", server.url)
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0, "nothing may be left on a server that was given"
    assert {row["wrong"] for row in result["rows"]} == {0}
    rows = {
        (row["contender"], row["operation"]): row["round_trips"]
        for row in result["rows"]
        if not row["round_trip_ms"]
    }
    for name, (new, seen) in ROUND_TRIPS.items():
        assert (rows[name, "add"], rows[name, "exists"]) == ([new], [seen]), name
    assert rows["claims-near-cache", "exists"] == [0]
    assert rows["claims", "add_many"] == [0.02]
    ours, *others = result["rig"]
    assert (ours["done"], ours["open"], ours["finished_twice"]) == (20, 0, 0)
    assert [row["done"] for row in others] == [20, 20]
    assert len({row["bytes"] for row in result["flat"]}) == 1, "what is over leaves nothing"
    assert "claim and commit a new item, unix socket" in out
