"""Filters with a time window: what is remembered, and what is forgotten, by the server's clock."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from near_cache_tools import Clock, is_kept, trips
from turns import Turns
from window_clocks import OVER, SLICE, Clocks

from bloomlock import BloomFilter, ClaimState

WEEK = timedelta(days=7)


@pytest.fixture
def clocks(stopped):
    return Clocks(*stopped())


# -- in time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [2, 3, 6])
def test_operations_and_epochs_in_any_order_are_those_of_a_set_that_forgets(clocks, slices, seed):
    """An item is there for `slices` epochs after the one in which it was new or renewed."""
    chance = random.Random(seed)
    shape = {"slices": slices, "window": slices * SLICE}
    made = [clocks.make(**shape), clocks.make(**shape), clocks.make(**shape, refresh=True)]
    items = [f"item {number}" for number in range(6)]
    added: dict[str, int] = {}
    newest, now = 0, 100
    clocks.set(now * SLICE)
    steps: list[object] = []
    for _ in range(120 * slices):
        kind = chance.choice(("add", "add_many", "exists", "discard", "turn", "turn"))
        if kind == "turn":
            now += chance.choice((1, 1, 1, 2, slices, slices + 1, 2 * slices + 3, -1))
            clocks.set(now * SLICE)
            steps.append(now)
            continue
        one, asked = chance.choice(made), chance.sample(items, 3 if kind == "add_many" else 1)
        answer = getattr(one, kind)(asked if kind == "add_many" else asked[0])
        answers = answer if kind == "add_many" else [answer]
        steps.append((kind, asked, answers, one is made[2]))
        if kind.startswith("add"):
            # The shard stays in the newest epoch that it was in when the clock is set back.
            newest = max(newest, now)
        for item, found in zip(asked, answers, strict=True):
            is_there = item in added and max(newest, now) - added[item] <= slices
            assert found is (is_there if kind in ("exists", "discard") else not is_there), steps
            if kind == "discard":
                added.pop(item, None)
            elif kind.startswith("add") and (found or one is made[2]):
                added[item] = newest


def test_each_call_is_one_round_trip_and_an_add_wipes_one_slice_at_most(clocks):
    shape = {"slices": 12, "window": 12 * SLICE, "capacity": 300_000}
    clocks.make(**shape).add("old")
    turns = Turns()
    made = BloomFilter.open("x", client=turns.client(clocks.url))
    size = made._state.view.descriptor.slices[0].size
    assert size > 50_000
    for now in (0, SLICE, 2 * SLICE, 9 * SLICE, 100 * SLICE):
        clocks.set(now)
        clocks.client.config_resetstat()
        assert turns.of(lambda: made.add(f"new at {now}")) == 1  # noqa: B023 - called at once
        written = clocks.client.info("commandstats").get("cmdstat_setrange", {"calls": 0})["calls"]
        # One for the state, the others of 16 KiB each.
        assert written <= 1 + -(-size // 16384)
        for name in ("add", "exists", "discard"):
            assert turns.of(lambda: getattr(made, name)(f"new at {now}")) == 1  # noqa: B023


def test_a_commit_renews_what_was_added_since_the_claim(clocks):
    made = clocks.make()
    claim = made.claim("a", ttl=2 * OVER, renew=False)
    assert made.add("a")
    clocks.set(SLICE)
    claim.commit()
    clocks.set(OVER)
    assert made.exists("a")


# -- near-cache ----------------------------------------------------------------------------------

CALLS = {
    "exists": lambda made, item: made.exists(item),
    "add": lambda made, item: not made.add(item),
    "exists_many": lambda made, item: made.exists_many([item, "other"])[0],
    "add_many": lambda made, item: not made.add_many([item, item, "other"])[0],
}
"""What answers whether an item is seen."""


@pytest.mark.parametrize("call", CALLS)
def test_a_kept_answer_is_given_for_max_staleness_and_no_longer(clocks, call):
    clock, is_seen = Clock(), CALLS[call]
    other, made = clocks.make(shards=3), clocks.make(clock=clock, shards=3, max_staleness=100.0)
    other.add_many(["a", "other"])
    clocks.go_on(OVER - 10, clock)
    assert is_seen(made, "a")
    before = trips(clocks.client)
    clocks.set(OVER)
    clock.now += 99
    # Others confirm the filter meanwhile, which says nothing of the item.
    made.add("later")
    assert trips(clocks.client) > before
    before = trips(clocks.client)
    assert is_kept(made, "a")
    assert is_seen(made, "a")
    clock.now += 1
    assert not is_kept(made, "a")
    assert not is_seen(made, "a")
    made.add("b")
    assert is_kept(made, "b")


def test_what_was_only_found_is_not_kept_where_adds_renew(clocks):
    made = clocks.make(clock=Clock(), refresh=True)
    clocks.make().add_many(["a", "b", "c"])
    assert made.exists("a")
    assert made.exists_many(["b", "a"]) == [True, True]
    assert made.claim("c").state is ClaimState.SEEN
    assert [is_kept(made, item) for item in "abc"] == [False] * 3
    assert made.add_many(["a"]) == [False]
    assert [is_kept(made, item) for item in "abc"] == [True, False, False]


def test_what_others_discard_is_known_after_max_staleness_and_to_claims_at_once(clocks):
    clock = Clock()
    mine, other = clocks.make(clock=clock, max_staleness=100.0), clocks.make()
    assert mine.add("a") is True
    assert is_kept(mine, "a")
    assert other.discard("a")
    assert mine.add("a") is False
    with mine.claim("a") as work:
        assert work
    assert other.discard("a")
    clock.now += 101
    assert mine.add("a") is True
    assert mine.discard("a") is True
    assert mine.exists("a") is False


# -- faults and refusals -------------------------------------------------------------------------


def test_a_slice_that_is_too_full_is_warned_of(r, caplog):
    made = BloomFilter("x", 6000, client=r, window=WEEK)
    made.update(map(str, range(800)))
    assert not caplog.records
    made.update(map(str, range(2500)))
    assert "each of the 6 slices of the window takes an even share" in caplog.text
    assert made.info().current_error_rate > 1e-6
