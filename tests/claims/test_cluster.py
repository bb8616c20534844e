"""Claims over several shards on a real cluster of three servers, and while a slot moves."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis
import servers
from claim_tools import let_expire

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimLostError, ClaimState

NEW, SEEN, BUSY, FAILED = ClaimState
ITEMS = [f"item {number}" for number in range(200)]


@pytest.fixture(scope="module")
def nodes():
    """Three masters that own a third of the slots each."""
    with servers.cluster(2000) as clients:
        # Ids and records of claims are bytes.
        ports = [client.connection_pool.connection_kwargs["port"] for client in clients]
        yield [redis.Redis(port=port) for port in ports]


@pytest.fixture
def cluster(nodes):
    with servers.emptied(nodes) as made:
        yield made


def pages(cluster):
    return BloomFilter("pages", 5000, 1e-9, client=cluster, shards=6)


def let_all_expire(nodes):
    for node in nodes:
        let_expire(node)


def test_batches_over_slots(cluster, nodes):
    with pages(cluster) as mine, pages(cluster) as other:
        made = mine.claim_many(ITEMS)
        assert [claim.state for claim in made] == [NEW] * 200
        assert all(node.keys("*:claims") for node in nodes), "each server has some"
        assert [claim.state for claim in other.claim_many(ITEMS)] == [BUSY] * 200
        mine.abandon_many(made[:50], "why")
        assert mine.commit_many(made[50:]) == [True] * 150
        states = [claim.state for claim in other.claim_many(ITEMS, max_attempts=1)]
        assert states == [NEW] * 50 + [SEEN] * 150
        counts = other.info().claims
        assert (counts.claimed, counts.committed, counts.failed, counts.open) == (250, 150, 50, 50)


def test_each_that_expired_over_shards(cluster, nodes):
    with pages(cluster) as dead, pages(cluster) as mine:
        left = dead.claim_many(ITEMS, renew=False)
        let_all_expire(nodes)
        found = []
        for claim in mine.expired():
            with claim:
                found.append(claim.item)
        assert sorted(found) == sorted(ITEMS)
        assert dead.commit_many(left) == [False] * 200
        assert not list(dead.expired())


def test_asyncio_over_slots(cluster, nodes):
    port = nodes[1].connection_pool.connection_kwargs["port"]

    async def main():
        url = f"redis://127.0.0.1:{port}"
        async with AsyncBloomFilter("pages", 5000, 1e-9, client=url, shards=6) as mine:
            made = await mine.claim_many(ITEMS, renew=False)
            assert all(await mine.commit_many(made[:100]))
            let_all_expire(nodes)
            found = []
            while some := await mine.claim_expired():
                found += [claim.item for claim in some]
            assert sorted(found) == sorted(ITEMS[100:])

    asyncio.run(main())


def test_a_slot_that_moves_takes_its_claims_along(cluster, nodes):
    """While it moves a claim waits, because no server has all of its keys; then all goes on."""
    with BloomFilter("moving", 5000, 1e-9, client=cluster) as mine:
        done, held, left, taken = mine.claim_many(["done", "held", "left", "taken"], renew=False)
        done.commit()
        move = servers.Move(cluster, nodes, "moving")
        move.begin()
        thread = threading.Thread(target=lambda: mine.claim("meanwhile", ttl=600).commit())
        thread.start()
        servers.wait_until(lambda: any("errorstat_TRYAGAIN" in n.info("errorstats") for n in nodes))
        assert thread.is_alive()
        move.finish()
        thread.join(60)
        assert mine.claim("meanwhile").state is SEEN
        states = [claim.state for claim in mine.claim_many(["done", "held", "left", "taken"])]
        assert states == [SEEN, BUSY, BUSY, BUSY]
        held.commit()
        left.abandon()
        assert mine.claim("left").state is NEW
        let_all_expire(nodes)
        other = mine.claim("taken")
        assert (other.state, other.attempts) == (NEW, 2)
        assert other.fence > taken.fence
        with pytest.raises(ClaimLostError):
            taken.commit()
