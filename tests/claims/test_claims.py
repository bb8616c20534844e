"""What a claim promises its worker, each trap of such schemes by itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import threading
import time
from collections import Counter

import pytest
import redis
from claim_tools import let_expire
from servers import wait_until

import bloomlock
from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    Claim,
    ClaimError,
    ClaimLostError,
    ClaimState,
    ConfigurationError,
    FilterLostError,
)
from bloomlock.filters import claim_session
from bloomlock.keys import ClaimKeys, FilterKeys

NEW, SEEN, BUSY, FAILED = ClaimState
KEYS = ClaimKeys.of(FilterKeys("pages").bits(0))
SHORT = 0.2
"""A lease that a test waits for."""
LONG = 600.0
SCRIPTS = {"EVAL", "EVALSHA"}


def pages(url, **options):
    return BloomFilter("pages", 1000, client=url, **options)


SHAPES = {
    "classic": {},
    "blocked": {"layout": "blocked"},
    "three shards": {"shards": 3},
    "blocked, three shards": {"layout": "blocked", "shards": 3},
    "seeds": {"seeds": [1, 2, 3, 4]},
    "secret key": {"key": "a secret of sixteen bytes"},
    "random key, lua": {"key": True, "strategy": "lua"},
    "transaction": {"strategy": "transaction"},
    "window": {"window": 86_400},
    "window, shards": {"window": 86_400, "slices": 30, "shards": 3},
    "grows": {"on_full": "grow"},
    "grows, lua, shards, key": {"on_full": "grow", "strategy": "lua", "shards": 3, "key": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_claim_work_commit(r, valkey, shape):
    options = SHAPES[shape]
    with pages(valkey, **options) as mine, pages(valkey, **options) as other:
        items = [f"https://example.org/{number}" for number in range(40)]
        for item in items[:20]:
            with mine.claim(item) as claim:
                assert (claim.state, bool(claim), claim.item) == (NEW, True, item)
                assert other.claim(item).state is BUSY
                assert not other.exists(item)
            assert other.claim(item).state is SEEN
            assert other.exists(item)
        made = mine.claim_many(items)
        assert [claim.state for claim in made] == [SEEN] * 20 + [NEW] * 20
        fences = [claim.fence for claim in made[20:]]
        assert len(set(fences)) == 20
        assert all(mine.commit_many(made[20:]))
        assert other.add_many(items) == [False] * 40
        counts = mine.info().claims
        assert (counts.claimed, counts.committed, counts.open) == (40, 40, 0)
        assert all(mine.commit_many(made[20:])), "repeating it is harmless"


def test_every_kind_of_server(client, server_url):
    with pages(server_url) as mine:
        with mine.claim("a") as claim:
            assert claim.state is NEW
            assert mine.claim("a").state is BUSY
        assert mine.claim("a").state is SEEN
        held = mine.claim("b", payload=b"\xff")
        let_expire(client)
        [taken] = mine.expired()
        assert (taken.item, taken.payload, taken.attempts) == ("b", b"\xff", 2)
        with pytest.raises(ClaimLostError):
            held.commit()


def test_one_is_not_blocked_by_a_reply_of_its_own_that_was_lost(r, valkey, proxy):
    with pages(proxy.url) as mine:
        mine.claim("warm").commit()
        proxy.deafen()
        claim = mine.claim("a")
        assert proxy.cuts["after"] == 1
        assert claim.state is NEW
        assert mine.info().claims.claimed == 2, "the second try was the same claim"
        proxy.deafen()
        claim.commit()
        assert proxy.cuts["after"] == 2
        assert mine.info().claims.committed == 2


def test_a_claim_of_which_every_reply_was_lost_is_had_by_the_next_try(r, valkey, proxy):
    with pages(proxy.url) as mine:
        mine.claim("warm").commit()
        proxy.judge = lambda *_: "after"
        with pytest.raises(redis.ConnectionError):
            mine.claim("a", ttl=LONG)
        with pytest.raises(redis.ConnectionError):
            mine.claim_many(["b", "c"], ttl=LONG)
        proxy.judge = lambda *_: "pass"
        with pages(valkey) as other:
            assert other.claim("a").state is BUSY, "the server has it"
        assert [mine.claim(item).state for item in "abc"] == [NEW] * 3


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("granted", [0, 2])
def test_of_claims_at_a_time_without_a_reply_each_is_had_by_the_next_try(granted, valkey, proxy):
    # The server carries out one of three. The last that is sent is given up last.
    lock, carried, given_up = threading.Lock(), threading.Event(), threading.Event()
    verdicts = ["after" if number == granted else "before" for number in range(3)]
    asked = []

    def judge(name, number):
        if name not in SCRIPTS:
            return "pass"
        with lock:
            place = len(asked)
            asked.append(number)
        if place < 2:
            assert carried.wait(60)
        if place == 3:  # the last again
            carried.set()
            assert given_up.wait(60)
        return verdicts[place] if place < 3 else "before"

    with pages(proxy.url) as mine:
        mine.claim("warm").commit()
        proxy.judge = judge
        errors = []

        def ask():
            with pytest.raises(redis.ConnectionError) as raised:
                mine.claim("a", ttl=LONG)
            errors.append(raised)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda number=number: len(asked) >= number)
        for thread in threads[:2]:
            thread.join(60)
        given_up.set()
        threads[2].join(60)
        assert len(errors) == 3
        proxy.judge = lambda *_: "pass"
        with pages(valkey) as other:
            assert other.claim("a").state is BUSY, "the server has it"
        if granted:
            # The token that was granted is the third that is tried, and is kept if that fails.
            verdicts = ["pass"] * 2
            proxy.judge = lambda name, _: (
                "pass" if name not in SCRIPTS else verdicts.pop() if verdicts else "before"
            )
            with pytest.raises(redis.ConnectionError):
                mine.claim("a", ttl=LONG)
            proxy.judge = lambda *_: "pass"
        first, second = mine.claim_many(["a", "b"], ttl=LONG)
        assert (first.state, second.state) == (NEW, NEW)
        assert mine.count_claims().claimed == 3
        first.commit()
        assert mine.claim("a").state is SEEN


def test_a_claim_whose_deadline_is_missing_is_not_reclaimed(r, valkey):
    with pages(valkey) as mine:
        held = mine.claim("a", ttl=LONG, renew=False)
        r.delete(KEYS.claims)
        again = mine.claim("a", ttl=LONG)
        assert again.state is BUSY
        assert 0 < again.remaining <= LONG, "and it ends"
        assert not list(mine.expired())
        held.commit()
        assert mine.claim("a").state is SEEN


def test_work_may_take_longer_than_the_lease(r, valkey):
    with pages(valkey) as mine, pages(valkey) as other:
        with mine.claim("a", ttl=SHORT) as held:
            first = r.zscore(KEYS.claims, r.zrange(KEYS.claims, 0, 0)[0])
            ends = lambda: r.zrange(KEYS.claims, 0, 0, withscores=True)[0][1]  # noqa: E731
            wait_until(lambda: held.lost or ends() > first + 5 * SHORT * 1000)
            if not held.lost:  # a machine that stood still for a lease is no fault of the watchdog
                assert other.claim("a").state is BUSY
                assert not list(other.expired())
        assert other.claim("a").state is SEEN


def test_all_of_a_process_are_renewed_in_one_trip(r, valkey, proxy):
    """One script for all claims of a shard: a crawl has tens of thousands of them."""
    with pages(proxy.url, shards=4) as mine:
        made = mine.claim_many([f"item {number}" for number in range(50)], ttl=30)
        assert all(made)
        made[0].extend()  # now the server knows the script
        packets, commands = proxy.packets, len(proxy.seen)
        for claim in made:
            claim._session.hold.renew_at = 0.0
        made[0]._session.watch()
        wait_until(lambda: all(claim._session.hold.renew_at > 0 for claim in made))
        assert proxy.packets == packets + 1
        assert len(proxy.seen) == commands + 4


def test_a_renewal_after_the_loss_makes_no_claim(r, valkey):
    with pages(valkey) as mine, pages(valkey) as other:
        held = mine.claim("a", renew=False)
        let_expire(r)
        taken = other.claim("a")
        assert taken.state is NEW
        assert taken.fence > held.fence
        with pytest.raises(ClaimLostError, match="another worker"):
            held.extend()
        assert held.lost
        with pytest.raises(ClaimLostError):
            held.check()
        taken.abandon()
        with pytest.raises(ClaimLostError):
            held.extend()
        assert not r.exists(KEYS.open, KEYS.claims)


def test_a_commit_after_the_lease(r, valkey):
    with pages(valkey) as mine, pages(valkey) as other:
        alone = mine.claim("alone", renew=False)
        let_expire(r)
        alone.commit()
        assert other.exists("alone")
        for end in ("commit", "abandon", None):
            item = f"taken, then {end}"
            held = mine.claim(item, renew=False)
            let_expire(r)
            taken = other.claim(item)
            assert taken.state is NEW
            if end:
                getattr(taken, end)()
            with pytest.raises(ClaimLostError, match="another worker claimed"):
                held.commit()
            assert other.exists(item) == (end == "commit")


def test_a_commit_after_a_clear_is_refused(r, valkey):
    with pages(valkey) as mine, pages(valkey) as other:
        held, again = mine.claim_many(["a", "b"])
        other.clear()
        assert not r.exists(*KEYS.of_generation[1:]), "the claims go with the generation"
        with pytest.raises(ClaimLostError, match="cleared"):
            held.commit()
        assert mine.commit_many([again]) == [False]
        assert not other.exists("a")
        assert other.claim("a").state is NEW
        with pytest.raises(FilterLostError):
            mine.claim("a")
        mine.reattach()
        assert mine.claim("a").state is BUSY


def test_claims_of_an_earlier_generation_do_not_come_back(r, valkey):
    """As after a clear by an older version, which does not know of claims."""
    with pages(valkey) as mine:
        mine.claim("a", ttl=LONG)
        left = {key: r.dump(key) for key in KEYS[1:] if r.exists(key)}
        fence = int(r.hget(KEYS.counts, "fence"))
        mine.clear()
        for key, data in left.items():
            r.restore(key, 0, data, replace=True)
        claim = mine.claim("a")
        assert claim.state is NEW
        assert claim.fence > fence
        assert mine.info().claims.claimed == 1


def test_delete_and_copy(r, valkey):
    with pages(valkey, shards=2) as mine:
        mine.claim_many([f"item {number}" for number in range(20)])
        with mine.copy("copy") as copy:
            assert copy.claim("item 0").state is NEW, "a copy has no claims"
        bloomlock.delete_filter("copy", client=valkey)
        mine.delete()
        assert not r.keys()


def test_fences_rise_though_claims_go_and_clocks_are_set_back(r, valkey):
    with pages(valkey) as mine:
        last = mine.claim("a")
        last.commit()
        future = last.fence + 10**12
        r.hset(KEYS.counts, "fence", future)
        one, two = mine.claim_many(["b", "c"])
        assert sorted([one.fence, two.fence]) == [future + 1, future + 2]
        mine.clear()
        assert mine.claim("d").fence == future + 3


def test_no_key_has_a_time_to_live(r, valkey):
    """One on a shared structure would be refreshed by every claim, or take a live one along."""
    with pages(valkey) as mine:
        mine.claim("a", ttl=SHORT, renew=False)
        mine.claim("b", ttl=SHORT, max_attempts=1).abandon("why")
        mine.claim("c", ttl=LONG)
        assert {r.ttl(key) for key in r.scan_iter()} == {-1}
        wait_until(lambda: mine.claim("a", ttl=LONG).state is NEW)
        assert mine.claim("c").state is BUSY


def test_no_window_between_the_end_of_a_claim_and_the_commit(r, valkey):
    pages(valkey).close()
    items = [f"item {number}" for number in range(100)]
    done, won = threading.Event(), Counter()

    def look():
        with pages(valkey) as other:
            while not done.is_set():
                for claim in other.claim_many(items):
                    if claim:
                        won[claim.item] += 1
                        claim.commit()

    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(done.set)
        wait_until(lambda: len(won) == len(items))
    assert set(won.values()) == {1}


def test_the_client_s_clock_does_not_count(r, valkey, monkeypatch):
    with pages(valkey) as mine, pages(valkey) as other:
        held = mine.claim("a", renew=False)
        real = time.monotonic
        monkeypatch.setattr(claim_session, "boot_clock", lambda: real() + 1e6)
        monkeypatch.setattr("bloomlock.filters.claims.boot_clock", lambda: real() + 1e6)
        assert other.claim("a").state is BUSY
        assert not list(other.expired())
        held.commit()


@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_gives_the_item_back(r, valkey, error):
    with pages(valkey) as mine, pages(valkey) as other:
        with pytest.raises(type(error)), mine.claim("a", max_attempts=3):
            raise error
        assert not mine.exists("a")
        again = other.claim("a")
        assert again.state is NEW
        assert again.attempts == (2 if isinstance(error, ValueError) else 1)
        errors = [failed.error for failed in mine.failed()]
        assert errors == (["ValueError: why"] if isinstance(error, ValueError) else [])


def test_a_task_that_is_cancelled_gives_the_item_back(r, valkey):
    async def main():
        async with AsyncBloomFilter("pages", 1000, client=valkey) as mine:
            begun = asyncio.Event()

            async def work():
                async with await mine.claim("a"):
                    begun.set()
                    await asyncio.sleep(LONG)

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert not await mine.exists("a")
            async with await mine.claim("a") as claim:
                assert claim.state is NEW
            [one, two] = await mine.claim_many(["a", "b"])
            assert (one.state, two.state) == (SEEN, NEW)
            assert await mine.commit_many([two]) == [True]
            await (await mine.claim("c", max_attempts=1)).abandon("why")
            assert [failed.item for failed in await mine.failed()] == ["c"]
            await mine.abandon_many([await mine.claim("d")])
            held = await mine.claim("e", ttl=SHORT, renew=False)
            await asyncio.sleep(2 * SHORT)
            taken = [claim async for claim in mine.expired()]
            assert [claim.item for claim in taken] == ["e"]
            await taken[0].abandon(offer=True)
            assert [claim.item for claim in await mine.claim_expired()] == ["e"]
            with pytest.raises(ClaimLostError):
                await held.extend()

    asyncio.run(main())


def test_the_same_item_twice_in_one_worker(r, valkey):
    with pages(valkey) as mine:
        first = mine.claim("a")
        assert (first.state, mine.claim("a").state) == (NEW, BUSY)
        states = [claim.state for claim in mine.claim_many(["b", "b", b"b", "c"])]
        assert states == [NEW, BUSY, BUSY, NEW]


def test_who_closes_ends_no_claim_of_others(r, valkey):
    with pages(valkey) as other:
        held = other.claim("a", ttl=LONG)
        second = pages(valkey)
        dropped = second.claim("b", ttl=LONG)
        second.close()
        with pages(valkey) as third:
            assert third.claim("a").state is BUSY
            assert third.claim("b").state is BUSY
        held.check()
        assert dropped.state is NEW


def test_claims_that_are_thrown_away_are_reported_together(r, valkey, caplog):
    with pages(valkey) as mine:
        mine.claim_many(map(str, range(50)), ttl=1.0)
        gc.collect()
        counts = lambda: re.findall(r"(\d+) claims were dropped while held", caplog.text)  # noqa: E731
        # Those of an earlier test may be among them, and the watchdog may look in between.
        wait_until(lambda: sum(map(int, counts())) >= 50)
        assert len(counts()) < 10
        wait_until(lambda: mine.claim("7").state is NEW)


def test_a_child_of_fork_ends_no_claim_of_its_parent(r, valkey):
    with pages(valkey) as mine:
        with mine.claim("a", ttl=LONG) as held:
            if not (child := os.fork()):
                with contextlib.suppress(BaseException):
                    for end in (held.commit, held.abandon, held.extend, held.check):
                        with contextlib.suppress(ClaimError):
                            end()
                            os._exit(1)
                    held.__exit__(None, None, None)
                    os._exit(0)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert mine.claim("a").state is BUSY
        assert mine.claim("a").state is SEEN


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_that_ended_as_its_item_was_seen_commits_nothing_later(r, valkey, shape):
    """Another worker has committed the item since, after it was discarded."""
    with pages(valkey, **SHAPES[shape]) as mine, pages(valkey, **SHAPES[shape]) as other:
        late = mine.claim("a", renew=False)
        let_expire(r)
        other.add("a")
        assert other.claim("a").state is SEEN
        assert other.discard("a")
        with other.claim("a") as claim:
            assert claim.state is NEW
        with pytest.raises(ClaimLostError):
            late.commit()
        counts = other.info().claims
        assert (counts.claimed, counts.expired, counts.committed) == (2, 1, 1)


def one_by_one(mine):
    yield from mine.expired()


def some_at_once(mine):
    while some := mine.claim_expired(7):
        assert len(some) <= 7
        yield from some


@pytest.mark.parametrize("ask", [one_by_one, some_at_once])
def test_each_that_expired_goes_to_one_caller(r, valkey, ask):
    with pages(valkey, shards=3) as dead:
        items = [f"item {number}" for number in range(100)]
        left = dead.claim_many(items, renew=False)
        let_expire(r)
        found: list[str] = []

        def take():
            with pages(valkey, shards=3) as mine:
                for claim in ask(mine):
                    with claim:
                        found.append(claim.item)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == sorted(items)
        assert dead.exists_many(items) == [True] * 100
        assert dead.commit_many(left) == [False] * 100
        counts = dead.info().claims
        assert (counts.claimed, counts.expired, counts.committed) == (200, 100, 100)


def test_some_that_expired_are_claimed_with_all_that_is_kept(r, valkey):
    with pages(valkey) as mine:
        items = [f"item {number}" for number in range(100)]
        mine.claim_many(items, renew=False, payloads=[f"more of {item}" for item in items])
        done = mine.claim_many(["failed", "held"], max_attempts=1, renew=False)
        assert not mine.claim_expired(), "nothing is over"
        let_expire(r)
        done[1].extend(LONG)
        first = mine.claim_expired()
        rest = mine.claim_expired(1000, LONG)
        # One of the 64 that were looked for may be what failed too often.
        assert 63 <= len(first) <= 64
        assert sorted(claim.payload for claim in first + rest) == sorted(
            f"more of {item}" for item in items
        )
        assert {(claim.state, claim.attempts) for claim in first + rest} == {(NEW, 2)}
        assert mine.commit_many(first + rest) == [True] * 100
        assert not mine.claim_expired()
        for limit in (0, 1001, True, 2.0, "3"):
            with pytest.raises(ConfigurationError, match="limit must be a whole number from 1 to"):
                mine.claim_expired(limit)


def test_an_item_that_expired_and_fails_is_offered_again(r, valkey):
    with pages(valkey) as mine:
        mine.claim("a", renew=False)
        let_expire(r)
        with pytest.raises(ValueError, match="why"):
            for claim in mine.expired(ttl=LONG):
                with claim:
                    raise ValueError("why")
        assert not list(mine.expired()), "not before the lease it had is over"
        let_expire(r)
        [again] = mine.expired()
        assert (again.item, again.attempts) == ("a", 3)
        again.abandon()
        assert mine.claim("a").state is NEW, "and who brings the item need not wait"


def test_an_item_that_fails_too_often(r, valkey):
    with pages(valkey) as mine:
        for attempt in (1, 2):
            claim = mine.claim("a", payload="more", max_attempts=3)
            assert (claim.state, claim.attempts) == (NEW, attempt)
            claim.abandon(ValueError(f"attempt {attempt}"))
        mine.claim("a", renew=False)
        let_expire(r)
        assert not list(mine.expired())
        assert mine.claim("a").state is FAILED
        assert not mine.claim("a"), "not to be worked on"
        [failed] = mine.failed()
        assert (failed.item, failed.attempts, failed.is_final) == ("a", 3, True)
        assert "lease ran out" in failed.error
        assert mine.info().claims.failed_items == 1


def test_a_late_worker_may_commit_what_failed(r, valkey):
    with pages(valkey) as mine:
        late = mine.claim("a", renew=False, max_attempts=1)
        let_expire(r)
        assert mine.claim("a").state is FAILED
        late.commit()
        assert mine.claim("a").state is SEEN
        assert not mine.failed()


def wait_for(mine, item, found):
    found.append(mine.claim(item, wait=LONG))


def test_one_waits_for_the_outcome(r, valkey, proxy, monkeypatch):
    # It would wait for ever if it were not woken.
    monkeypatch.setattr("bloomlock.filters.claims.SLICE_MS", LONG * 1000)
    with pages(proxy.url) as mine, pages(valkey) as other:
        for end, state in (("commit", SEEN), ("abandon", NEW)):
            held = other.claim(end, ttl=LONG)
            found: list[Claim] = []
            thread = threading.Thread(target=wait_for, args=(mine, end, found))
            thread.start()
            wait_until(lambda: r.hlen(KEYS.waiting))
            getattr(held, end)()
            thread.join()
            assert found[0].state is state
            assert not r.hlen(KEYS.waiting)
        held = other.claim("a", ttl=SHORT, renew=False)
        claim = mine.claim("a", wait=LONG)
        assert claim.state is NEW, "its worker is dead"
        assert mine.claim("a", wait=0.05).state is BUSY


def test_what_is_near_costs_no_round_trip(r, valkey, proxy):
    with pages(proxy.url, near_cache=10, max_staleness=LONG) as mine:
        mine.claim("a").commit()
        mine.claim("b").commit()
        assert mine.exists("c") is False
        packets = proxy.packets
        assert mine.claim("a").state is SEEN
        assert [claim.state for claim in mine.claim_many(["a", "b"])] == [SEEN, SEEN]
        assert proxy.packets == packets


def test_round_trips(r, valkey, proxy):
    # So large that these items are no reason to look at the fill.
    with BloomFilter("pages", 100_000, client=proxy.url, shards=3) as mine:
        items = [f"item {number}" for number in range(100)]
        mine.commit_many(mine.claim_many(items))
        # The server has the scripts from then on.
        mine.abandon_many([mine.claim("script")], offer=True)
        mine.claim_expired()
        held = mine.claim_many([f"held {number}" for number in range(30)])
        for work, trips in (
            (lambda: mine.claim("a").commit(), 2),
            (lambda: mine.claim("a"), 1),
            (lambda: mine.claim_many(items), 1),
            (lambda: mine.commit_many(mine.claim_many([f"new {item}" for item in items])), 2),
            (lambda: mine.abandon_many(held, offer=True), 1),
            (mine.claim_expired, 2),
        ):
            packets = proxy.packets
            work()
            assert proxy.packets - packets == trips


def test_a_claim_that_is_not_new_ends_nothing(r, valkey):
    with pages(valkey) as mine:
        held = mine.claim("a", ttl=LONG)
        with mine.claim("a") as busy:
            assert not busy
            assert busy.fence is None
        with pytest.raises(ClaimError, match="it is BUSY"):
            busy.commit()
        with pytest.raises(ClaimError, match="it is BUSY"):
            mine.commit_many([held, busy])
        assert not mine.exists("a")
        held.abandon()
        held.abandon()
        with pytest.raises(ClaimError, match="given back already"):
            held.commit()


def test_a_full_filter_takes_no_claims(r, valkey):
    with BloomFilter("full", 100, 1e-3, client=valkey, on_full="raise") as mine:
        with pytest.raises(CapacityError):
            for number in range(1000):
                mine.claim(f"item {number}").commit()
        assert mine.claim("item 0").state is SEEN


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ttl": 0}, "ttl must be a number of seconds"),
        ({"ttl": "60"}, "ttl must be a number of seconds"),
        ({"renew": 2}, "renew must be True or False"),
        ({"wait": -1}, "wait must be a number of seconds from 0"),
        ({"payload": 3}, "payload must be str, bytes or None, not int"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": True}, "max_attempts must be a whole number from 1"),
    ],
)
def test_bad_input(r, valkey, options, sentence):
    with pages(valkey) as mine:
        with pytest.raises(ConfigurationError, match=sentence):
            mine.claim("a", **options)
        assert not r.exists(*KEYS[1:])


def test_bad_items(r, valkey):
    with pages(valkey) as mine:
        with pytest.raises(TypeError, match="item must be str or bytes"):
            mine.claim(3)
        with pytest.raises(TypeError, match=r"items\[1\]"):
            mine.claim_many(["a", 3])
        with pytest.raises(ConfigurationError, match="error must be a text or an exception"):
            mine.claim("a").abandon(3)


@pytest.mark.parametrize("strategy", ["pipeline", "lock"])
def test_strategies_that_cannot(r, valkey, strategy):
    with pages(valkey, strategy=strategy) as mine:
        for call in (
            mine.claim,
            lambda item: mine.claim_many([item]),
            lambda _: [*mine.expired()],
            lambda _: mine.claim_expired(),
        ):
            with pytest.raises(ConfigurationError, match=f"for claims, not '{strategy}'"):
                call("a")


def test_where_scripts_are_forbidden(r, valkey):
    r.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    try:
        with (
            redis.Redis.from_url(valkey, username="plain", password="pw") as client,  # noqa: S106 - of a server that lives as long as the test
            pages(client) as mine,
            pytest.raises(ConfigurationError, match="claims need a server that runs scripts"),
        ):
            mine.claim("a")
    finally:
        r.execute_command("ACL", "DELUSER", "plain")
