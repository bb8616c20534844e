"""Filters with a time window: what is remembered, and what is forgotten, by the server's clock."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import redis
from moved_clock import stopped_server
from proxy import HANDSHAKE, Proxy
from window_clocks import LAST, OVER, SLICE, SLICES, WINDOW, Clocks, notices

from bloomlock import BloomFilter, Window
from bloomlock.errors import ConfigurationError, OutcomeUnknownError

WEEK = timedelta(days=7)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    with stopped_server("valkey", tmp_path_factory.mktemp("clock")) as server:
        yield server


@pytest.fixture
def clocks(stopped):
    stopped[0].flushall()
    return Clocks(*stopped)


# -- in time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refresh", [False, True])
def test_an_item_is_remembered_for_a_window_and_at_most_a_slice_more(clocks, refresh):
    made, idle = clocks.make(refresh=refresh), clocks.make()
    assert made.add("once")
    assert made.add("again")
    for seconds in (SLICE // 2, *range(SLICE, LAST + 1, SLICE), OVER - 1):
        clocks.set(seconds)
        assert made.add("again") is False
        for one in (made, idle):
            assert one.exists_many(["once", "again"]) == [True, True]
        made.add(f"at {seconds}")
    clocks.set(OVER)
    for one in (made, idle):
        assert one.exists_many(["once", "again", f"at {SLICE}"]) == [False, refresh, True]
    assert made.add("again") is not refresh
    assert idle.add("once") is True
    assert made.add("once") is False
    clocks.set(OVER + SLICE - 1)
    assert made.exists(f"at {SLICE}")
    clocks.set(OVER + SLICE)
    assert not idle.exists(f"at {SLICE}")


def test_a_filter_that_nobody_uses_forgets_as_well(clocks):
    made = clocks.make()
    made.update(["a", "b"])
    for seconds in (OVER, 20 * WINDOW, 400 * WINDOW):
        clocks.set(seconds)
        for one in (made, clocks.make()):
            assert one.exists_many(["a", "b"]) == [False, False]
    assert made.add_many(["a", "b", "a"]) == [True, True, False]
    assert made.exists("a")


def test_a_clock_that_is_set_back_forgets_nothing(clocks):
    made = clocks.make()
    clocks.set(3 * SLICE)
    assert made.add("a")
    clocks.set(0)
    assert made.exists("a")
    assert made.add("a") is False
    assert made.add("b")
    assert made.exists_many(["a", "b"]) == [True, True]
    clocks.set(3 * SLICE)
    assert made.exists_many(["a", "b"]) == [True, True]


@pytest.mark.parametrize("slices", [6, 30])
def test_nothing_of_an_earlier_use_of_a_slice_is_left(clocks, slices, seed):
    """Every slice is used several times, by two clients that take turns, and some not at all."""
    chance, step = random.Random(seed), WEEK.total_seconds() / slices
    made = clocks.make(slices=slices, window=WEEK, shards=2, capacity=8 * slices)
    clients = made, notices(BloomFilter.open("x", client=clocks.client))
    added: dict[str, float] = {}
    now = 0
    for turn in range(3 * slices):
        now += round(chance.choice((0, step, step, step, 2 * step)))
        clocks.set(now)
        one, other = chance.sample(clients, 2)
        items = [f"{turn}.{number}" for number in range(4)]
        assert one.add_many(items) == [True] * 4
        assert other.add_many(items) == [False] * 4
        added |= dict.fromkeys(items, now)
        there = other.exists_many(list(added))
        for (item, since), is_there in zip(added.items(), there, strict=True):
            if now - since < WEEK.total_seconds() - 1:
                assert is_there, item
            if now - since > WEEK.total_seconds() + step + 1:
                assert not is_there, item
    # What was forgotten takes no room: three windows of items are not more than one.
    live = sum(there)
    assert live < len(added) / 2
    assert abs(made.count() - live) <= max(4, live // 8)
    assert made.info().current_error_rate < 1e-9


@pytest.mark.parametrize("shards", [1, 3])
def test_a_shard_that_was_idle_is_turned_by_one_client_while_another_goes_by_it(clocks, shards):
    other = clocks.make(shards=shards)
    renews = clocks.make(shards=shards, refresh=True)
    items = [f"item {number}" for number in range(20)]
    other.update(items)
    clocks.set(OVER)
    assert not any(renews.exists_many(items))
    other.update(f"another {number}" for number in range(20))
    clocks.set(OVER + SLICE)
    assert renews.add_many(items) == [True] * 20
    assert [renews.add(item) for item in items] == [False] * 20


# -- faults and refusals -------------------------------------------------------------------------


def test_a_reply_that_is_lost_in_the_first_add_of_a_slice(clocks):
    """Whatever request is cut off, the item is new once, or the outcome is said to be unknown."""
    for number in range(1, 10):
        clocks.client.flushall()
        clocks.set(0)
        BloomFilter("x", 300_000, client=clocks.client, window=Window(WINDOW, SLICES)).add("old")
        clocks.set(OVER)
        with Proxy(clocks.url) as proxy, BloomFilter.open("x", client=proxy.url) as made:
            sent = []

            def judge(name, _number, sent=sent, number=number):
                if name in HANDSHAKE:
                    return "pass"
                sent.append(name)
                return "after" if len(sent) == number else "pass"

            proxy.judge = judge
            try:
                answer = notices(made).add("a")
            except (OutcomeUnknownError, redis.ConnectionError):
                answer = None
            other = BloomFilter.open("x", client=clocks.client)
            seen = other.add("a")
            assert answer is None or answer is not seen
            assert other.exists_many(["a", "old"]) == [True, False]


def test_a_slice_that_is_too_full_is_warned_of(r, caplog):
    made = BloomFilter("x", 14_000, client=r, window=WEEK)
    made.update(map(str, range(800)))
    assert not caplog.records
    made.update(map(str, range(2500)))
    assert "each of the 14 slices of the window takes an even share" in caplog.text
    assert made.info().current_error_rate > 1e-6


def test_without_scripts_nothing_is_added_and_all_is_found(r, valkey):
    made = BloomFilter("x", 1000, client=r, window=WEEK)
    r.acl_setuser("plain", enabled=True, nopass=True, keys="*", commands=["+@all", "-@scripting"])
    with redis.Redis.from_url(valkey, username="plain", password="any") as plain:  # noqa: S106
        found = BloomFilter.open("x", client=plain)
        for add in (lambda: found.add("a"), lambda: found.update(["a"])):
            with pytest.raises(ConfigurationError, match="with a window needs a server that"):
                add()
        assert not found.exists("a")
        assert made.add("a") is True
        assert found.exists("a")
    r.acl_deluser("plain")
