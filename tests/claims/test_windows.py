"""Claims of filters with a time window: what is done is new again when the window is over."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

import pytest
from moved_clock import moved_server
from processes import FORKS

from bloomlock import BloomFilter, ClaimState
from bloomlock.strategies.sliced import TRUST_S

DAY = 86_400
WEEK = timedelta(days=7)
SLICE = 7 * DAY // 14
NEW, SEEN, BUSY = ClaimState.NEW, ClaimState.SEEN, ClaimState.BUSY
LONG = 100 * DAY
"""A lease that no move of the clock ends."""


@pytest.fixture(params=["valkey", "redis62"])
def clocked(request, tmp_path):
    """A server whose clock the test moves: what moves it until clients notice, and its URL."""
    with moved_server(request.param, tmp_path) as (_, move, url):

        def move_and_wait(seconds):
            move(seconds)
            time.sleep(TRUST_S)

        yield move_and_wait, url


def test_what_was_committed_is_new_again_after_the_window(clocked):
    move, url = clocked
    mine = BloomFilter("x", 1000, 1e-9, client=url, window=WEEK)
    idle = BloomFilter.open("x", client=url)
    with mine.claim("a", LONG, renew=False) as claim:
        assert claim.state is NEW
        # It counts from the commit on.
        move(2 * DAY)
        assert idle.claim("a").state is BUSY
    move(8 * DAY)
    assert not idle.add("a")
    for one in (idle, mine):
        assert one.claim("a").state is SEEN
    move(9 * DAY + SLICE + 60)
    for one in (idle, mine):
        assert not one.exists("a")
    again = idle.claim_many(["a", "b"], LONG, renew=False)
    assert [claim.state for claim in again] == [NEW, NEW]
    assert idle.commit_many(again) == [True, True]
    assert mine.exists_many(["a", "b"]) == [True, True]
    counts = mine.count_claims()
    assert (counts.claimed, counts.committed, counts.open) == (3, 3, 0)


def test_an_item_that_was_not_done_is_offered_whatever_the_window(clocked):
    move, url = clocked
    made = BloomFilter("x", 1000, 1e-9, client=url, window=WEEK)
    made.claim("a", DAY, renew=False, payload="kept")
    move(30 * DAY)
    (late,) = made.claim_expired()
    assert (late.item, late.payload, late.attempts) == ("a", "kept", 2)
    late.commit()
    assert made.exists("a")
    assert made.claim_expired() == []


def test_a_clock_that_is_set_back_forgets_nothing_that_was_committed(clocked):
    move, url = clocked
    made = BloomFilter("x", 1000, 1e-9, client=url, window=WEEK)
    move(3 * DAY)
    made.claim("a", LONG, renew=False).commit()
    move(0)
    assert made.claim("a").state is SEEN
    made.claim("b", LONG, renew=False).commit()
    assert made.exists_many(["a", "b"]) == [True, True]
    move(6 * DAY)
    assert [claim.state for claim in made.claim_many(["a", "b"])] == [SEEN, SEEN]
    # By more than a window: what is committed then is in a slice that is live all the same. (The
    # one of that time is not.)
    move(31 * SLICE)
    made.claim("c", LONG, renew=False).commit()
    move(0)
    made.claim("d", LONG, renew=False).commit()
    assert made.exists_many(["c", "d"]) == [True, True]


def test_a_commit_turns_a_shard_that_no_client_has_turned(r, valkey):
    made = BloomFilter("x", 1000, client=valkey, window=DAY, shards=1)
    claim = made.claim("a")
    assert r.getrange("bloomlock:{x}:bits", 8, 15) == bytes(8)
    claim.commit()
    assert made.exists("a")
    assert r.getrange("bloomlock:{x}:bits", 8, 15) != bytes(8)


WORKERS, ITEMS = 3, 400


def work(url: str, seed: int) -> list[tuple[str, str]]:
    """Claim and commit, or add, all items in some order; return what this worker won, and how."""
    order = random.Random(seed)
    won = []
    with BloomFilter.open("x", client=url) as mine:
        items = [str(number) for number in range(ITEMS)]
        order.shuffle(items)
        while items:
            time.sleep(0.005)
            some = [items.pop() for _ in range(min(len(items), order.choice([1, 1, 7])))]
            if order.random() < 0.3:
                won += [
                    (item, "added")
                    for item, is_new in zip(some, mine.add_many(some), strict=True)
                    if is_new
                ]
                continue
            claims = [claim for claim in mine.claim_many(some, LONG, renew=False) if claim]
            order.shuffle(claims)
            left = [claim for claim in claims if order.random() < 0.8]
            assert all(mine.commit_many(left))
            won += [(claim.item, "committed") for claim in left]
            mine.abandon_many([claim for claim in claims if claim not in left])
    return won


def test_each_item_is_committed_once_in_a_window_while_slices_turn(tmp_path, seed):
    chances = random.Random(seed)
    with (
        moved_server("valkey", tmp_path) as (client, move, url),
        ProcessPoolExecutor(WORKERS, mp_context=FORKS) as pool,
    ):
        BloomFilter("x", 10_000, 1e-9, client=url, window=WEEK, shards=2).close()
        now = 0
        for window in range(3):
            jobs = [
                pool.submit(work, url, seed + 10 * window + number) for number in range(WORKERS)
            ]
            # Less than a window from the first to the last of them.
            for _ in range(6):
                now += chances.randrange(SLICE // 2, 2 * SLICE)
                move(now)
            ways = [one for job in jobs for one in job.result()]
            committed = Counter(item for item, how in ways if how == "committed")
            assert set(committed.values()) <= {1}, committed.most_common(3)
            added = Counter(item for item, how in ways if how == "added")
            assert set(added.values()) <= {1}, added.most_common(3)
            with BloomFilter.open("x", client=url) as again:
                there = again.exists_many(map(str, range(ITEMS)))
                assert [str(n) for n in range(ITEMS) if there[n]] == sorted(
                    committed | added, key=int
                )
                rest = again.claim_many(map(str, range(ITEMS)), LONG, renew=False)
                assert all(
                    claim.state in {NEW, SEEN} and (claim.state is SEEN) == is_there
                    for claim, is_there in zip(rest, there, strict=True)
                )
                assert all(again.commit_many([claim for claim in rest if claim]))
                assert all(again.exists_many(map(str, range(ITEMS))))
            now += 7 * DAY + SLICE + 60
            move(now)
        assert client.exists("bloomlock:{x}:meta")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("refresh", [False, True])
def test_what_is_forgotten_one_by_one_can_be_claimed_again(r, shards, refresh):
    """By workers that have heard of it and such that have not, and while a claim is open."""
    mine = BloomFilter("x", 1000, 1e-9, client=r, window=WEEK, shards=shards, refresh=refresh)
    other = BloomFilter.open("x", client=r)
    assert other.add("a")
    assert mine.claim("a").state is SEEN
    assert other.discard("a")
    for _ in range(3):
        # Its version is another one each time.
        with mine.claim("a", LONG, renew=False) as claim:
            assert claim.state is NEW
            assert other.claim("a").state is BUSY
        assert other.claim("a").state is SEEN
        assert mine.exists("a")
        assert not other.add("a")
        assert other.discard("a")
        assert not mine.exists("a")
    # Forgotten between the claim and its commit, by another client.
    claim = mine.claim("b", LONG, renew=False)
    assert other.add("b")
    assert other.discard("b")
    claim.commit()
    assert other.exists_many(["a", "b", "c"]) == [False, True, False]
    assert mine.discard_many(["b", "b"]) == [True, False]
    states = [one.state for one in other.claim_many(["a", "b", "c"], LONG, renew=False)]
    assert states == [NEW, NEW, NEW]


def test_a_script_goes_by_the_window_and_by_what_was_forgotten(r):
    mine = BloomFilter("x", 1000, 1e-9, client=r, window=WEEK, shards=3)
    other = BloomFilter.open("x", client=r)
    text = "return {exists(1) and 1 or 0, add(1) and 1 or 0, add(2) and 1 or 0}"
    items = ["a", "b"]
    assert mine.run_script(text, items) == [0, 1, 1]
    assert other.discard("a")
    assert other.exists_many(items) == [False, True]
    assert mine.run_script(text, items) == [0, 1, 0]
    assert other.exists_many(items) == [True, True]
    assert other.discard_many(items) == [True, True]
    assert mine.run_script(text, items) == [0, 1, 1]
    assert mine.run_script(text, items) == [1, 0, 0]
