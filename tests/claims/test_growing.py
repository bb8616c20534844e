"""Claims of filters that grow: an item is given to one worker and committed once across growths."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
from processes import FORKS

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState

NEW, SEEN, BUSY = ClaimState.NEW, ClaimState.SEEN, ClaimState.BUSY
ITEMS = [f"item {number}" for number in range(4000)]


def growing(url, **more):
    return BloomFilter("x", 100, 1e-6, client=url, on_full="grow", up_to=20_000, **more)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_claimed_before_a_growth_is_committed_after_it(client, server_url, shards):
    mine, other = growing(server_url, shards=shards), growing(server_url, shards=shards)
    early = mine.claim_many(ITEMS[:50], 600.0)
    assert [claim.state for claim in early] == [NEW] * 50
    added = other.add_many(ITEMS[1000:3000])
    assert sum(added) >= 1998
    assert other.info().slices > 1
    # `mine` has not heard of it.
    assert {claim.state for claim in mine.claim_many(ITEMS[:50])} == {BUSY}
    assert {claim.state for claim in mine.claim_many(ITEMS[1000:1500])} == {SEEN}
    assert mine.commit_many(early[:25]) == [True] * 25
    mine.abandon_many(early[25:])
    for one in (mine, other, growing(server_url, shards=shards)):
        assert one.exists_many(ITEMS[:25]) == [True] * 25
        assert not any(one.exists_many(ITEMS[25:50]))
        assert [claim.state for claim in one.claim_many(ITEMS[:25])] == [SEEN] * 25
    counts = other.count_claims()
    assert (counts.claimed, counts.committed, counts.abandoned, counts.open) == (50, 25, 25, 0)


def test_a_commit_sets_bits_of_the_newest_slice_only(r, valkey):
    made = growing(valkey)
    made.add_many(ITEMS[:1000])
    assert made.info().slices > 1
    before = r.get("bloomlock:{x}:bits")
    assert all(made.commit_many(made.claim_many(ITEMS[1000:1050])))
    after = r.get("bloomlock:{x}:bits")
    # The first slice is made for a hundred items.
    assert after[:300] == before[:300]
    assert after != before


def test_growths_that_a_client_has_not_heard_of_cost_one_round_trip_in_all(r, valkey):
    made, other = growing(valkey), growing(valkey)
    made.claim("a").commit()
    # On a busy machine the growths take longer than what it knows of the fill is good for: it would
    # look, and hear of them.
    made._state.fill._clock = lambda: 0.0
    other.add_many(ITEMS[:3000])
    assert other.info().slices > 2
    for expected in (2, 1):
        r.config_resetstat()
        made.claim(f"b{expected}")
        assert r.info("commandstats")["cmdstat_evalsha"]["calls"] == expected


def test_commits_make_it_grow(r, valkey):
    made = growing(valkey)
    for start in range(0, 2000, 100):
        assert all(made.commit_many(made.claim_many(ITEMS[start : start + 100])))
    assert made.info().slices > 1
    assert made.exists_many(ITEMS[:2000]) == [True] * 2000
    assert sum(made.exists_many(ITEMS[2000:])) <= 2


def test_an_item_of_a_dead_worker_is_offered_after_a_growth(r, valkey):
    made = growing(valkey)
    made.claim("a", 0.1, renew=False, payload="kept")
    growing(valkey).add_many(ITEMS[:1000])
    late = []
    while not late:
        late = made.claim_expired()
    assert [(claim.item, claim.payload) for claim in late] == [("a", "kept")]
    late[0].commit()
    assert made.exists("a")
    assert made.claim_expired() == []


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter(
            "x", 100, 1e-6, client=valkey, on_full="grow", up_to=20_000
        ) as made:
            claim = await made.claim("a")
            await made.add_many(ITEMS[:1000])
            async with claim:
                assert (await made.claim("a")).state is BUSY
            assert (await made.claim("a")).state is SEEN

    asyncio.run(main())


def work(url, seed):
    """Claim and commit all items in some order; return what this worker committed."""
    order = random.Random(seed)
    won = []
    with BloomFilter.open("x", client=url) as mine:
        left = ITEMS[:]
        order.shuffle(left)
        while left:
            some = [left.pop() for _ in range(min(len(left), order.choice([1, 10, 100])))]
            claims = [claim for claim in mine.claim_many(some, 600.0, renew=False) if claim]
            kept = [claim for claim in claims if order.random() < 0.9]
            assert all(mine.commit_many(kept))
            won += [claim.item for claim in kept]
            mine.abandon_many([claim for claim in claims if claim not in kept])
    return won


def test_each_item_is_committed_once_by_processes_while_it_grows(r, valkey, seed):
    growing(valkey, shards=2).close()
    with ProcessPoolExecutor(3, mp_context=FORKS) as pool:
        jobs = [pool.submit(work, valkey, seed + number) for number in range(3)]
        won = Counter(item for job in jobs for item in job.result())
    assert set(won.values()) == {1}
    with BloomFilter.open("x", client=valkey) as again:
        assert again.info().slices > 1
        assert all(again.exists_many(won))
        counts = again.count_claims()
        assert counts.committed == len(won)
        assert counts.claimed == counts.committed + counts.abandoned
        # What looks like another item is at the error rate.
        rest = [item for item in ITEMS if item not in won]
        assert all(again.commit_many([claim for claim in again.claim_many(rest) if claim]))
        assert all(again.exists_many(ITEMS))
