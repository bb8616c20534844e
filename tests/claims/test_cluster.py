"""Claims over several shards on a real cluster of three servers."""

from __future__ import annotations

import asyncio

import pytest
import redis
import servers
from claim_tools import let_expire

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState

NEW, SEEN, BUSY, FAILED = ClaimState
ITEMS = [f"item {number}" for number in range(200)]


@pytest.fixture
def nodes(nodes):
    # Ids and records of claims are bytes.
    return [redis.Redis(port=servers.port_of(node)) for node in nodes]


def let_all_expire(nodes):
    for node in nodes:
        let_expire(node)


def test_batches_over_slots(cluster, nodes):
    """The items of one batch lie on all servers; threads and asyncio find the same."""

    async def drain():
        url = f"redis://127.0.0.1:{nodes[1].connection_pool.connection_kwargs['port']}"
        async with AsyncBloomFilter("pages", 5000, 1e-9, client=url, shards=6) as its:
            found = []
            while some := await its.claim_expired():
                assert all(await its.commit_many(some))
                found += [claim.item for claim in some]
            return found

    with BloomFilter("pages", 5000, 1e-9, client=cluster, shards=6) as mine:
        made = mine.claim_many(ITEMS, renew=False)
        assert [claim.state for claim in made] == [NEW] * 200
        assert all(node.dbsize() for node in nodes), "each server has some"
        mine.abandon_many(made[:50], "why")
        assert mine.commit_many(made[50:100]) == [True] * 50
        states = [claim.state for claim in mine.claim_many(ITEMS[:110], renew=False)]
        assert states == [NEW] * 50 + [SEEN] * 50 + [BUSY] * 10
        let_all_expire(nodes)
        assert sorted(asyncio.run(drain())) == sorted(ITEMS[:50] + ITEMS[100:])
        assert mine.commit_many(made[100:]) == [False] * 100
        counts = mine.count_claims()
        assert (counts.claimed, counts.failed, counts.expired) == (400, 50, 150)
        assert (counts.committed, counts.open) == (200, 0)
