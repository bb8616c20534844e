"""Items that failed, or whose workers died: given to workers again, or forgotten."""

from __future__ import annotations

import asyncio

import pytest
from claim_tools import let_expire

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ClaimLostError,
    ClaimState,
    ConfigurationError,
    FilterLostError,
)
from bloomlock.keys import ClaimKeys, FilterKeys

NEW, SEEN, BUSY, FAILED = ClaimState
SHARDS = 3
LONG = 600.0
KEYS = [ClaimKeys.of(FilterKeys("jobs").spread(SHARDS).bits(n)) for n in range(SHARDS)]


@pytest.fixture
def jobs(r, valkey):
    with BloomFilter("jobs", 1000, client=valkey, shards=SHARDS) as made:
        yield made


def fail(jobs, item, **options):
    jobs.claim(item, max_attempts=1, **options).abandon("why")
    assert jobs.claim(item).state is FAILED


def test_retried_items_are_offered_at_once_with_all_their_attempts(jobs):
    items = [f"item {number}" for number in range(30)]
    for item in items:
        fail(jobs, item, payload=f"of {item}")
    assert jobs.retry_failed([*items, "never seen"]) == [True] * 30 + [False]
    assert jobs.retry_failed(items) == [True] * 30, "repeating it is harmless"
    assert not jobs.failed()
    found = [(claim.item, claim.payload, claim.attempts) for claim in jobs.expired()]
    assert sorted(found) == sorted((item, f"of {item}", 1) for item in items)
    assert jobs.retry_failed(items) == [True] * 30, "workers have them"
    assert [claim.state for claim in jobs.claim_many(items)] == [BUSY] * 30


def test_who_brings_a_retried_item_gets_it(jobs):
    fail(jobs, "a")
    jobs.retry_failed(["a"])
    with jobs.claim("a") as claim:
        assert (claim.state, claim.attempts) == (NEW, 1)
    assert jobs.retry_failed(["a"]) == [False], "it is done"
    counts = jobs.info().claims
    assert (counts.claimed, counts.failed, counts.committed, counts.open) == (2, 1, 1, 0)


def test_a_late_worker_that_gives_a_retried_item_back_takes_no_attempt(r, jobs):
    late = jobs.claim("a", LONG, renew=False, max_attempts=2)
    let_expire(r)
    assert jobs.retry_failed(["a"]) == [True]
    jobs.abandon_many([late], offer=True)
    again = jobs.claim("a", max_attempts=2)
    assert (again.state, again.attempts) == (NEW, 1)


def test_the_limit_of_attempts_outlives_a_retry(jobs):
    fail(jobs, "a")
    jobs.retry_failed(["a"])
    jobs.claim("a").abandon("why not")
    [failed] = jobs.failed()
    assert (failed.attempts, failed.error, failed.is_final) == (1, "why not", True)


def test_dropped_items_are_new_again_and_offered_to_no_worker(r, jobs):
    items = [f"item {number}" for number in range(30)]
    for item in items:
        fail(jobs, item)
    assert jobs.drop_failed([*items, "never seen"]) == [True] * 30 + [False]
    assert jobs.drop_failed(items) == [False] * 30
    assert not jobs.failed()
    assert not list(jobs.expired())
    assert not any(r.exists(keys.failed, keys.open, keys.claims) for keys in KEYS)
    claim = jobs.claim("item 0")
    assert (claim.state, claim.attempts) == (NEW, 1)


def test_an_item_that_is_never_to_be_worked_on_again(jobs):
    fail(jobs, "a")
    jobs.add("a")
    jobs.drop_failed(["a"])
    assert jobs.claim("a").state is SEEN


@pytest.mark.parametrize("what", ["retry_failed", "drop_failed"])
def test_what_a_worker_has_is_left_to_it(jobs, what):
    jobs.claim("a", max_attempts=3).abandon("why")
    held = jobs.claim("a", ttl=LONG)
    assert getattr(jobs, what)(["a"]) == [what == "retry_failed"]
    held.check()
    assert jobs.claim("a").state is BUSY
    assert [failed.attempts for failed in jobs.failed()] == [1]
    held.commit()


def test_a_claim_whose_deadline_is_missing_is_left_to_its_worker(r, jobs):
    held = jobs.claim("a", ttl=LONG, renew=False)
    r.delete(*(keys.claims for keys in KEYS))
    assert jobs.drop_failed(["a"]) == [False]
    assert jobs.retry_failed(["a"]) == [True]
    held.commit()


def test_items_whose_workers_died(r, jobs):
    late, gone, offered = (jobs.claim(item, ttl=LONG, renew=False) for item in "abc")
    let_expire(r)
    assert jobs.drop_failed(["b"]) == [True]
    with pytest.raises(ClaimLostError, match="or it was retried or dropped"):
        gone.commit()
    assert not jobs.exists("b")
    assert jobs.retry_failed(["a"]) == [True]
    late.commit()
    assert jobs.exists("a"), "no other worker had it yet"
    [taken] = jobs.expired(ttl=LONG)
    taken.abandon("why")
    assert not list(jobs.expired()), "not before the lease it had is over"
    assert jobs.retry_failed(["c"]) == [True]
    assert [claim.attempts for claim in jobs.expired()] == [1]
    with pytest.raises(ClaimLostError):
        offered.commit()
    counts = jobs.info().claims
    assert counts.claimed == counts.open + counts.committed + counts.failed + counts.expired


@pytest.mark.parametrize("between", ["retry", "drop", "more attempts"])
def test_the_worker_of_a_claim_that_failed_commits_nothing_of_another_s(r, jobs, between):
    late = jobs.claim("a", renew=False, max_attempts=1)
    let_expire(r)
    assert jobs.claim("a").state is FAILED
    if between == "retry":
        jobs.retry_failed(["a"])
    if between == "drop":
        jobs.drop_failed(["a"])
    taken = jobs.claim("a", max_attempts=2)
    assert taken.state is NEW
    taken.abandon()
    with pytest.raises(ClaimLostError):
        late.commit()
    assert not jobs.exists("a")


def test_after_a_clear(jobs, valkey):
    fail(jobs, "a")
    with BloomFilter.open("jobs", client=valkey) as other:
        for what in (jobs.retry_failed, jobs.drop_failed):
            other.clear()
            with pytest.raises(FilterLostError):
                what(["a"])
            jobs.reattach()
        assert other.retry_failed(["a"]) == [False]


def test_a_lost_reply(r, valkey, proxy):
    with BloomFilter("jobs", 1000, client=proxy.url, shards=SHARDS) as jobs:
        fail(jobs, "a")
        fail(jobs, "b")
        proxy.deafen()
        assert jobs.retry_failed(["a"]) == [True]
        proxy.deafen()
        jobs.drop_failed(["b"])
        assert proxy.cuts["after"] == 2
        assert not jobs.failed()
        assert [claim.item for claim in jobs.expired()] == ["a"]


def test_one_round_trip(r, valkey, proxy):
    with BloomFilter("jobs", 1000, client=proxy.url, shards=SHARDS) as jobs:
        fail(jobs, "a")
        jobs.retry_failed(["b"])
        jobs.drop_failed(["b"])
        for what in (jobs.retry_failed, jobs.drop_failed):
            packets = proxy.packets
            assert what(["a", "b", "c"]) == [True, False, False]
            assert what([]) == []
            assert proxy.packets == packets + 1


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("jobs", 1000, client=valkey) as jobs:
            await (await jobs.claim("a", max_attempts=1)).abandon("why")
            assert await jobs.retry_failed(["a", "b"]) == [True, False]
            assert await jobs.drop_failed(["a", "b"]) == [True, False]

    asyncio.run(main())


def test_every_kind_of_server(client, server_url):
    with BloomFilter("jobs", 1000, client=server_url, shards=SHARDS) as jobs:
        fail(jobs, b"a\xff")
        assert jobs.retry_failed([b"a\xff"]) == [True]
        [claim] = jobs.expired()
        claim.abandon("why")
        assert jobs.drop_failed([b"a\xff"]) == [True]


def test_bad_input(r, valkey, jobs):
    for what in (jobs.retry_failed, jobs.drop_failed):
        with pytest.raises(TypeError, match=r"items\[1\]"):
            what(["a", 3])
    with BloomFilter("plain", 1000, client=valkey, strategy="pipeline") as plain:
        for what in (plain.retry_failed, plain.drop_failed):
            with pytest.raises(ConfigurationError, match="for claims, not 'pipeline'"):
                what(["a"])
