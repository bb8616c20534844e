"""The near-cache: kept answers cost no round trip, and none is given for longer than promised.

Each rule holds for single calls and for batches.
"""

from __future__ import annotations

import random

import pytest
import redis
from flat_options import given
from near_cache_tools import MANY, Clock, hold, is_kept, lose_reply, slowly, trips

from bloomlock import BloomFilter
from bloomlock.errors import CapacityError, FilterLostError, OutcomeUnknownError
from bloomlock.filters import answers


def cached(client, capacity=1000, **options):
    options = {"near_cache": MANY, "max_staleness": 600.0} | options
    return BloomFilter("x", capacity, client=client, **given(options))


def clear_by_another(client):
    BloomFilter.open("x", client=client).clear()


ASKS = {
    "add": lambda made: not made.add("a"),
    "exists": lambda made: made.exists("a"),
    "add_many": lambda made: made.add_many(["a", "b"]) == [False, False],
    "exists_many": lambda made: made.exists_many(["a", "b"]) == [True, True],
}
"""Calls that say whether "a" (and "b") are seen."""
CORES = {
    "add": lambda state: answers.add(state, "a"),
    "exists": lambda state: answers.exists(state, "a"),
    "add_many": lambda state: answers.add_many(state, ["a", "b"], "items"),
    "exists_many": lambda state: answers.exists_many(state, ["a", "b"], "items"),
}
"""The same, to be carried out step by step."""


# -- what is kept --------------------------------------------------------------------------------


def test_a_positive_answer_is_asked_for_once(r):
    made, other = cached(r), BloomFilter("x", 1000, client=r)
    other.add("there")
    assert made.add("new") is True
    assert made.exists("there") is True
    assert made.exists("not there") is False
    kept = ["new", "there", "not there", "other"]
    assert [is_kept(made, item) for item in kept] == [True, True, False, False]
    before = trips(r)
    for item in ("new", "there"):
        assert made.add(item) is False
        assert made.exists(item) is True
        assert item in made
    assert trips(r) == before
    other.add("not there")
    assert made.exists("not there") is True
    between = trips(r)
    assert other.exists("there") is True
    assert trips(r) == between + 1, "without near_cache= each call is sent"
    assert not is_kept(other, "there")


@pytest.mark.parametrize("route", ["items", "bitmap", "auto"])
def test_batches_ask_only_for_what_is_not_kept(r, route, seed):
    chance = random.Random(seed)
    made = cached(r, 5000, error_rate=1e-9)
    seen: set[str] = set()
    for size in (1, 2, 40, 300) * 3:
        items = [str(chance.randrange(600)) for _ in range(size)]
        assert made.exists_many(iter(items), route=route) == [item in seen for item in items]
        new = [item not in seen and not seen.add(item) for item in items]
        assert made.add_many(items, route=route) == new
        before = trips(r)
        assert made.add_many(items, route=route) == [False] * size
        assert made.exists_many(items, route=route) == [True] * size
        assert made.add(items[0]) is False
        assert trips(r) == before


def test_a_full_filter_still_knows_what_it_knows(r):
    made = cached(r, 20, on_full="raise")
    other = BloomFilter("x", 20, client=r)
    other.add_many(["theirs", "and theirs"])
    added = []
    with pytest.raises(CapacityError):
        for number in range(1000):
            made.add(str(number))
            added.append(str(number))
    before = trips(r)
    assert [made.add(item) for item in added] == [False] * len(added)
    assert trips(r) == before
    # Kept answers stand at their places around an error.
    with pytest.raises(CapacityError) as caught:
        made.add_many(["0", "theirs", "1", "and theirs", "2", "new", "3"])
    assert caught.value.results == [False] * 5


# -- for how long --------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ASKS)
def test_a_clear_by_another_client_is_noticed_in_time(r, ask):
    clock = Clock()
    made = clock.of(cached(r, max_staleness=2.0))
    made.add_many(["a", "b"])
    clock.now += 1.5
    assert made.exists("c") is False
    # This answer confirms what is kept, from when it was asked for.
    clock.now += 0.5
    clear_by_another(r)
    clock.now += 1.499
    assert ASKS[ask](made)
    clock.now += 0.001
    with pytest.raises(FilterLostError):
        ASKS[ask](made)
    # A loss that was found stays found, whatever the clock says.
    clock.now -= 1
    for each in ASKS.values():
        with pytest.raises(FilterLostError):
            each(made)
    made.reattach()
    assert made.add("new") is True
    assert not is_kept(made, "b")


def test_nothing_kept_is_given_after_reattach(r):
    made = cached(r)
    made.add("a")
    clear_by_another(r)
    made.reattach()
    assert made.add("a") is True


def test_time_counts_from_before_the_request(r):
    clock = Clock()
    made = clock.of(cached(r, max_staleness=1.0))
    for core in CORES.values():
        made.add_many(["a", "b"])
        clock.now += 1.0
        made._runtime.run(slowly(core(made._state), clock, 0.9))
        before = trips(r)
        clock.now += 0.099
        assert made.exists("a")
        assert trips(r) == before
        clock.now += 0.001
        assert made.exists("a")
        assert trips(r) == before + 1
        clock.now += 1.0


@pytest.mark.parametrize("how", ["clear", "replace", "reattach"])
@pytest.mark.parametrize("core", CORES)
def test_a_late_answer_stays_in_its_generation(r, how, core):
    made = cached(r)
    made.update(["a", "b"])
    answer = hold(CORES[core](made._state), made._runtime)
    if how == "clear":
        made.clear()
    elif how == "replace":
        made.delete()
        made.reattach()
    else:
        clear_by_another(r)
        made.reattach()
    seen = core.startswith("exists")
    assert answer() == (seen if core in ("add", "exists") else [seen, seen])
    assert made.exists_many(["a", "b"]) == [False, False]
    assert made.add_many(["a", "b", "a"]) == [True, True, False]


def test_a_late_answer_is_not_given_after_a_loss(r):
    made = cached(r)
    made.add("a")
    answer = hold(answers.exists(made._state, "a"), made._runtime)
    clear_by_another(r)
    with pytest.raises(FilterLostError):
        made.exists("b")
    assert answer() is True
    for _ in range(2):
        with pytest.raises(FilterLostError):
            made.exists("a")


# -- losses and failures -------------------------------------------------------------------------


def test_a_batch_goes_on_in_the_new_generation_where_asked(r):
    clock = Clock()
    made = clock.of(cached(r, on_lost="recreate", max_staleness=1.0))
    assert made.add_many(["a", "b"]) == [True, True]
    clear_by_another(r)
    assert made.add_many(["a", "b"]) == [False, False]
    # What was kept when the call began counts for this call still.
    assert made.add_many(["a", "c", "b", "c"]) == [False, True, False, False]
    assert made.add_many(["a", "b", "c"]) == [True, True, False]
    clear_by_another(r)
    clock.now += 1
    assert made.add("a") is True
    assert made.add("b") is True
    assert made.add("a") is False


@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
def test_an_update_asks_the_server_about_what_is_kept(r, on_lost):
    made = cached(r, on_lost=on_lost)
    items = [str(number) for number in range(300)]
    made.add_many(items)
    clear_by_another(r)
    if on_lost == "raise":
        with pytest.raises(FilterLostError):
            made.update(items)
        made.reattach()
    made.update(items)
    assert all(BloomFilter.open("x", client=r).exists_many(items))


def test_an_add_whose_reply_was_lost_is_not_kept(r):
    made = cached(r, on_unknown="new")
    made.add("b")
    assert lose_reply(answers.add(made._state, "a")) is True
    assert made.exists("a") is False
    assert lose_reply(answers.add_many(made._state, ["a", "b"], "items")) == [True, False]
    assert made.exists_many(["a", "b"]) == [False, True]


@pytest.mark.parametrize(
    "fail",
    [
        lambda made: lose_reply(answers.add(made._state, "c")),
        lambda made: lose_reply(answers.add_many(made._state, ["c", "d"])),
        lambda made: lose_reply(answers.add_many(made._state, ["a", "c"])),
        lambda made: made.run_script("return ("),
    ],
)
def test_after_a_failure_the_server_is_asked_first(r, fail):
    made = cached(r)
    made.add("a")
    with pytest.raises((OutcomeUnknownError, redis.ResponseError)):
        fail(made)
    before = trips(r)
    for _ in range(2):
        assert made.add("a") is False
        assert trips(r) == before + 1
