"""When work runs twice and when it does not: a test for each row of docs/claims.md."""

from __future__ import annotations

import os
import signal
import struct

import pytest
import redis
from claim_rules import LOST_LIFE_MS
from claim_tools import let_expire
from servers import wait_until

from bloomlock import BloomFilter, ClaimLostError, ClaimState
from bloomlock.claims import ClaimRequest, take_claims
from bloomlock.keys import ClaimKeys, FilterKeys
from bloomlock.runtime.threads import threads_for

NEW, SEEN, BUSY, FAILED = ClaimState
KEYS = ClaimKeys.of(FilterKeys("pages").bits(0))
SHORT = 0.2
LONG = 600.0


@pytest.fixture
def mine(r, valkey):
    with BloomFilter("pages", 1000, client=valkey) as made:
        yield made


@pytest.fixture
def other(r, valkey):
    with BloomFilter("pages", 1000, client=valkey) as made:
        yield made


def test_a_worker_that_is_killed_between_its_work_and_the_commit(r, valkey, mine):
    if not (child := os.fork()):
        with BloomFilter("pages", 1000, client=valkey) as its, its.claim("a", payload="more"):
            redis.Redis.from_url(valkey).rpush("worked", "child")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert mine.claim("a").state is BUSY, "until its lease is over"
    assert not list(mine.expired())
    let_expire(r)
    for claim in mine.expired():
        with claim:
            assert (claim.item, claim.payload, claim.attempts) == ("a", "more", 2)
            r.rpush("worked", "parent")
    assert r.lrange("worked", 0, -1) == [b"child", b"parent"]
    assert mine.claim("a").state is SEEN


def test_a_worker_that_is_killed_before_its_work_or_after_the_commit(r, valkey, mine):
    for item, commits in (("before", False), ("after", True)):
        if not (child := os.fork()):
            with BloomFilter("pages", 1000, client=valkey) as its:
                claim = its.claim(item)
                if commits:
                    claim.commit()
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    let_expire(r)
    assert [claim.item for claim in mine.expired()] == ["before"]


def test_a_worker_that_is_slower_than_a_lease_that_is_not_renewed(r, mine, other):
    """Both work; only a fence keeps the effect of the first out."""
    held = mine.claim("a", ttl=SHORT, renew=False)
    taken = wait_until(lambda: other.claim("a", ttl=LONG))
    assert taken.fence > held.fence
    assert held.lost
    for end in (held.check, held.commit, held.check, held.commit, held.extend):
        with pytest.raises(ClaimLostError):
            end()
    assert mine.commit_many([held]) == [False]
    assert held.lost


def test_a_batch_may_wait_longer_than_its_lease(r, mine, other):
    """As items of a queue do that a worker fetches ahead: all claims of a process are renewed."""
    made = mine.claim_many([f"item {number}" for number in range(30)], ttl=SHORT)

    def ends():
        return [until_ms for _, until_ms in r.zrange(KEYS.claims, 0, -1, withscores=True)]

    last = max(ends())
    wait_until(lambda: min(ends()) > last + 3 * SHORT * 1000)
    if not any(claim.lost for claim in made):  # a machine that stood still for a lease is no fault
        assert not list(other.expired())
        assert mine.commit_many(made) == [True] * 30


def test_a_message_that_comes_again_before_the_lease_is_over(r, mine, other):
    """BUSY is no reason to acknowledge it: its worker may be dead."""
    mine.claim("message 1", renew=False)
    assert other.claim("message 1").state is BUSY
    let_expire(r)
    assert other.claim("message 1").state is NEW


def test_a_commit_that_did_not_arrive(r, mine, proxy):
    with BloomFilter("pages", 1000, client=proxy.url) as cut_off:
        claim = cut_off.claim("a", renew=False)
        proxy.judge = lambda *_: "before"
        with pytest.raises(redis.ConnectionError):
            claim.commit()
        assert mine.claim("a").state is BUSY
        let_expire(r)
        assert [taken.item for taken in mine.expired()] == ["a"]


def test_a_commit_of_which_every_reply_was_lost(r, mine, proxy):
    with BloomFilter("pages", 1000, client=proxy.url) as cut_off:
        claim = cut_off.claim("a", renew=False)
        proxy.judge = lambda *_: "after"
        with pytest.raises(redis.ConnectionError):
            claim.commit()
        assert mine.claim("a").state is SEEN
        proxy.judge = lambda *_: "pass"
        claim.commit()
        assert mine.info().claims.committed == 1


def test_what_an_exception_gave_back_is_not_offered(r, mine):
    """Who gets the exception knows of the item, and says what becomes of it."""
    with pytest.raises(ValueError, match="why"), mine.claim("a"):
        raise ValueError("why")
    let_expire(r)
    assert not list(mine.expired())
    assert mine.claim("a").state is NEW


def test_an_add_of_an_item_that_is_claimed(r, mine, other):
    """`add` knows nothing of claims: it is another worker's answer "new"."""
    claim = mine.claim("a")
    assert other.add("a") is True
    assert other.claim("a").state is SEEN
    claim.commit()
    other.update(["b"])
    assert mine.claim("b").state is SEEN, "though it was new to no worker"


def test_a_server_that_goes_back_to_an_earlier_state(r, mine):
    """As after a failover to a replica that had not received the commit."""
    claim = mine.claim("a", ttl=LONG, renew=False)
    earlier = {key: r.dump(key) for key in KEYS if r.exists(key)}
    claim.commit()
    for key, data in earlier.items():
        r.restore(key, 0, data, replace=True)
    assert mine.claim("a").state is BUSY
    let_expire(r)
    assert [taken.item for taken in mine.expired()] == ["a"]


def test_a_request_that_arrives_late_holds_an_item_one_lease(r, valkey, mine, other):
    claim = mine.claim("a", ttl=LONG)
    held, place = claim._session.held, claim._session.place
    claim.abandon()
    late = ClaimRequest(*held, 600_000, 0, claim._session.offer.carried(), b"", False)
    threads_for(redis.Redis.from_url(valkey)).run(take_claims([(place, [late])]))
    assert other.claim("a").state is BUSY, "a claim without a worker"
    let_expire(r)
    assert [taken.item for taken in other.expired()] == ["a"], "and it ends"


def test_a_takeover_is_remembered_for_a_day(r, mine, other):
    late, later = mine.claim_many(["a", "b"], renew=False)
    let_expire(r)
    for item in "ab":
        other.claim(item).abandon()
    day_ago = r.time()[0] * 1000 - LOST_LIFE_MS
    r.zadd(KEYS.lost, {late._session.held.token: day_ago - 60_000})
    r.zadd(KEYS.lost, {later._session.held.token: day_ago + 60_000})
    mine.claim("c", renew=False)
    let_expire(r)
    assert other.claim("c").state is NEW, "a takeover forgets what is older than a day"
    with pytest.raises(ClaimLostError):
        later.commit()
    late.commit()
    assert other.exists("a")


def test_another_spelling_is_another_item(r, mine):
    states = [claim.state for claim in mine.claim_many(["a", b"a", "A", "a "])]
    assert states == [NEW, BUSY, NEW, NEW]


def test_false_positives_are_items_taken_for_done(r, valkey):
    """At capacity their share is that of the filter: with these items, always the same."""
    with BloomFilter("rough", 1000, 0.01, client=valkey) as rough:
        rough.commit_many(rough.claim_many([f"item {number}" for number in range(1000)]))
        asked = [f"other {number}" for number in range(5000)]
        made = rough.claim_many(asked, ttl=LONG)
        taken_for_done = sum(claim.state is SEEN for claim in made)
        assert all(claim.state in (NEW, SEEN) for claim in made)
        expected = 5000 * rough.info().current_error_rate
        assert expected / 2 < taken_for_done < 2 * expected
        assert rough.exists_many(asked).count(True) == taken_for_done
        counts = rough.info().claims
        assert counts.open == counts.claimed - counts.committed == 5000 - taken_for_done


def test_an_open_claim_that_looks_done_is_counted_as_expired(r, mine, other):
    """Its bits were set for other items: it is not offered, and `expired` counts it."""
    claim = mine.claim("a", renew=False)
    for (offset,) in struct.iter_unpack(">I", claim._session.held.places):
        r.setbit(KEYS.bits, offset, 1)
    let_expire(r)
    assert not list(other.expired())
    counts = other.info().claims
    assert (counts.open, counts.expired, counts.committed) == (0, 1, 0)
