"""What claims cost and what they refuse: round trips, memory on the server, one sentence each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from claim_tools import let_expire, script_calls
from servers import wait_until

from bloomlock import BloomFilter, ClaimState
from bloomlock.catalog import delete_filter
from bloomlock.errors import (
    CapacityError,
    ClaimError,
    ClaimLostError,
    ConfigurationError,
    FilterLostError,
)

NEW, SEEN, BUSY, FAILED = ClaimState
ITEMS = [f"item {number}" for number in range(100)]
BATCH = 1000


def test_round_trips(clock, proxy):
    # So large that these items are no reason to look at the fill.
    with BloomFilter("pages", 100_000, client=proxy.url, shards=3) as mine:
        mine.commit_many(mine.claim_many(ITEMS))
        # The server has the scripts from then on.
        mine.abandon_many([mine.claim("script")], offer=True)
        mine.claim_expired()
        mine.retry_failed(["a"])
        mine.drop_failed(["a"])
        held = mine.claim_many([f"held {number}" for number in range(30)])
        for work, trips in (
            (lambda: mine.claim("a").commit(), 2),
            (lambda: mine.claim("a"), 1),
            (lambda: mine.claim_many(ITEMS), 1),
            (lambda: mine.commit_many(mine.claim_many([f"new {item}" for item in ITEMS])), 2),
            (lambda: mine.abandon_many(held, offer=True), 1),
            (lambda: clock.go_on(1), 0),
            (mine.claim_expired, 2),
            (lambda: mine.retry_failed(ITEMS), 1),
            (lambda: mine.drop_failed(ITEMS), 1),
            (lambda: mine.drop_failed([]), 0),
            (mine.count_claims, 1),
            (mine.open_claims, 1),
            (mine.failed, 1),
        ):
            packets = proxy.packets
            work()
            assert proxy.packets - packets == trips, work


def live(found, clock, batches, name="live"):
    """Let items be claimed and committed, a few of them given back or left to expire."""
    for number in range(batches):
        made = found.claim_many([f"{name} {number}.{n}" for n in range(BATCH)], renew=False)
        found.abandon_many(made[:5], "why")
        found.commit_many(made[10:])
    clock.go_on(61)
    for claim in found.expired():
        claim.commit()


@pytest.mark.parametrize("batches", [2, pytest.param(1000, marks=pytest.mark.long)])
def test_what_is_over_leaves_nothing(clock, batches):
    """Memory follows the open claims: but for takeovers, which are remembered for a day."""
    client = clock.client

    def taken():
        return {
            key: client.memory_usage(key, samples=0)
            for key in client.scan_iter()
            if client.type(key) != b"string"
        }

    with BloomFilter("pages", BATCH * batches, 1e-9, client=clock.url) as found:
        live(found, clock, 1, "first")
        clock.go_on(86_401)
        before = taken()
        live(found, clock, batches)
        clock.go_on(86_401)
        # Which takes something over, and forgets the others.
        found.claim("last", renew=False)
        clock.go_on(61)
        for claim in found.expired():
            claim.commit()
        counts = found.count_claims()
        after = taken()
    assert (counts.open, counts.failed_items) == (0, 0)
    assert counts.claimed == counts.committed + counts.failed + counts.expired
    assert after.keys() == before.keys()
    assert all(after[key] <= before[key] + 32 for key in after)


def test_no_key_has_a_time_to_live(clock, mine):
    """One on a shared structure would be refreshed by every claim, or take a live one along."""
    mine.claim("a", renew=False)
    mine.claim("b", max_attempts=1).abandon("why")
    assert {clock.client.ttl(key) for key in clock.client.scan_iter()} == {-1}


def test_delete_and_copy(clock, make):
    mine = make(shards=2)
    mine.claim_many(ITEMS)
    with mine.copy("copy") as copy:
        assert copy.claim("item 0").state is NEW, "a copy has no claims"
    delete_filter("copy", client=clock.url)
    mine.delete()
    assert not clock.client.keys()


@pytest.mark.parametrize(
    "change", [lambda mine: mine.rename("other"), lambda mine: mine.rebuild(["b"])]
)
def test_a_claim_of_before_a_rename_or_a_rebuild_cannot_be_committed(mine, change):
    claim = mine.claim("a")
    change(mine)
    with pytest.raises((ClaimLostError, FilterLostError)):
        claim.commit()


def test_a_claim_that_is_not_new_ends_nothing(mine):
    held = mine.claim("a")
    with mine.claim("a") as busy:
        assert (bool(busy), busy.fence) == (False, None)
    with pytest.raises(ClaimError, match="it is BUSY"):
        busy.commit()
    with pytest.raises(ClaimError, match="it is BUSY"):
        mine.commit_many([held, busy])
    assert not mine.exists("a")
    held.abandon()
    held.abandon()
    with pytest.raises(ClaimError, match="given back already"):
        held.commit()
    with mine.claim("a") as again:
        pass
    again.commit()
    with pytest.raises(ClaimError, match="committed already"):
        again.abandon()


@pytest.mark.parametrize(("end", "state"), [("abandon", NEW), ("commit", SEEN)])
def test_who_waited_keeps_its_own_payload(clock, mine, other, end, state):
    """A claim that is BUSY has that of the other claim, and is asked for again."""
    held = other.claim("a", payload="theirs")
    assert mine.claim("a", payload="mine").payload == "theirs"
    before = script_calls(clock.client)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(mine.claim, "a", wait=600.0, payload="mine")
        wait_until(lambda: script_calls(clock.client) > before + 1)
        getattr(held, end)()
        found = waiting.result()
    assert (found.state, found.payload) == (state, "mine")
    assert [claim.payload for claim in mine.open_claims()] == ["mine"] * (state is NEW)
    assert (found.remaining > 0) == (state is NEW)


def test_a_full_filter_takes_no_claims(clock):
    with BloomFilter("full", 100, 1e-3, client=clock.url, on_full="raise") as mine:
        with pytest.raises(CapacityError):
            for number in range(1000):
                mine.claim(f"item {number}").commit()
        assert mine.claim("item 0").state is SEEN


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda p: p.claim("a", ttl=0), ConfigurationError, "ttl must be a number of seconds"),
        (lambda p: p.claim("a", ttl="60"), ConfigurationError, "ttl must be a number of seconds"),
        (lambda p: p.claim("a", ttl=[]), ConfigurationError, "ttl must be a number of seconds"),
        (lambda p: p.claim("a", renew=2), ConfigurationError, "renew must be True or False"),
        (lambda p: p.claim("a", wait=-1), ConfigurationError, "wait must be a number of seconds"),
        (lambda p: p.claim("a", payload=3), ConfigurationError, "payload must be str, bytes or"),
        (lambda p: p.claim("a", max_attempts=0), ConfigurationError, "max_attempts must be a whol"),
        (lambda p: p.claim("a", max_attempts=True), ConfigurationError, "max_attempts must be a"),
        (lambda p: p.claim_expired(0), ConfigurationError, "limit must be a whole number from 1"),
        (lambda p: p.claim_expired(1001), ConfigurationError, "limit must be a whole number from"),
        (lambda p: p.claim_expired(True), ConfigurationError, "limit must be a whole number from"),
        (
            lambda p: p.claim_many(["a", "b"], payloads=["one"]),
            ConfigurationError,
            "payloads must be one for each item, not 1 for 2 items",
        ),
        (
            lambda p: p.claim_many(["a", "b"], payloads=["one", 2]),
            ConfigurationError,
            "payload must be str, bytes or None, not int",
        ),
        (lambda p: p.claim(3), TypeError, "item must be str or bytes"),
        (lambda p: p.claim_many(["a", 3]), TypeError, r"items\[1\]"),
        (lambda p: p.retry_failed(["a", 3]), TypeError, r"items\[1\]"),
        (lambda p: p.drop_failed(["a", 3]), TypeError, r"items\[1\]"),
    ],
)
def test_bad_input(mine, call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(mine)
    assert mine.count_claims().claimed == 0


def test_bad_input_of_what_ends_a_claim(mine):
    claim = mine.claim("a")
    with pytest.raises(ConfigurationError, match="error must be a text or an exception"):
        claim.abandon(3)
    with pytest.raises(ConfigurationError, match="offer must be True or False"):
        claim.abandon(offer=2)
    with pytest.raises(ConfigurationError, match="ttl must be a number of seconds"):
        claim.extend(0)
    claim.commit()


@pytest.mark.parametrize("strategy", ["pipeline", "lock"])
def test_strategies_that_cannot(make, strategy):
    mine = make(strategy=strategy)
    for call in (
        lambda: mine.claim("a"),
        lambda: mine.claim_many(["a"]),
        lambda: [*mine.expired()],
        mine.claim_expired,
        lambda: mine.retry_failed(["a"]),
        lambda: mine.drop_failed(["a"]),
    ):
        with pytest.raises(ConfigurationError, match=f"for claims, not '{strategy}'"):
            call()


def test_where_scripts_are_forbidden(clock):
    user = ("on", ">pw", "~*", "&*", "+@all", "-@scripting")
    clock.client.execute_command("ACL", "SETUSER", "plain", *user)
    try:
        with (
            redis.Redis.from_url(clock.url, username="plain", password="pw") as client,  # noqa: S106 - of a server that lives as long as the test
            BloomFilter("pages", 1000, client=client) as mine,
            pytest.raises(ConfigurationError, match="claims need a server that runs scripts"),
        ):
            mine.claim("a")
    finally:
        clock.client.execute_command("ACL", "DELUSER", "plain")


def test_every_kind_of_server(client, server_url):
    """What the lists of claims offer, on the oldest and the newest Redis too."""
    with BloomFilter("jobs", 1000, client=server_url, shards=3) as jobs:
        jobs.claim(b"a\xff", payload="more", max_attempts=1).abandon("why")
        [failed] = jobs.failed()
        assert (failed.item, failed.error, failed.is_final) == (b"a\xff", "why", True)
        assert jobs.retry_failed([b"a\xff", "b"]) == [True, False]
        [claim] = jobs.expired()
        assert (claim.item, claim.payload, claim.attempts) == (b"a\xff", "more", 1)
        claim.abandon("why")
        assert jobs.drop_failed([b"a\xff"]) == [True]
        jobs.claim("c", renew=False)
        [is_open] = jobs.open_claims()
        assert (is_open.item, is_open.attempts) == ("c", 1)
        assert 0 < is_open.remaining <= 60
        let_expire(client)
        assert [claim.item for claim in jobs.claim_expired()] == ["c"]
