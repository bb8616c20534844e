"""The near-cache of filters with a time window: nothing is seen when it is forgotten."""

from __future__ import annotations

import pytest
from moved_clock import stopped_server
from near_cache_tools import hold, trips
from window_clocks import LAST, OVER, SLICE, Clock, Clocks

from bloomlock import (
    ClaimState,
)
from bloomlock.filters import answers
from bloomlock.filters.claim_session import ClaimOptions
from bloomlock.filters.claims import claim_many
from bloomlock.windows import DRIFT


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    with stopped_server("valkey", tmp_path_factory.mktemp("clock")) as server:
        yield server


@pytest.fixture
def clocks(stopped):
    stopped[0].flushall()
    return Clocks(*stopped)


@pytest.fixture
def clock():
    return Clock()


def claim(made, item):
    """Return whether an item is seen."""
    return made.claim(item).state is ClaimState.SEEN


CALLS = {
    "exists": lambda made, item: made.exists(item),
    "add": lambda made, item: not made.add(item),
    "exists_many": lambda made, item: made.exists_many([item, "other"])[0],
    "add_many": lambda made, item: not made.add_many([item, item, "other"])[0],
    "add_each": lambda made, item: not dict(made.add_each([item]))[item],
    "claim": claim,
    "claim_many": lambda made, item: made.claim_many([item])[0].state is ClaimState.SEEN,
}
"""What answers whether an item is seen."""


def claiming(made):
    made.claim("so that the server has the script")
    options = ClaimOptions.check(60.0, renew=False)
    return claim_many(made._state, ["a"], options, made._keeper())


HELD = (
    lambda made: answers.exists(made._state, "a"),
    lambda made: answers.add(made._state, "a"),
    lambda made: answers.exists_many(made._state, ["a"]),
    lambda made: answers.add_many(made._state, ["a", "a"]),
    claiming,
)
"""What asks for an item, to be carried out step by step."""


@pytest.mark.parametrize("call", CALLS)
def test_what_is_kept_is_forgotten_when_its_epoch_ends(clocks, clock, call):
    other, made = clocks.make(shards=3), clocks.make(clock=clock, shards=3)
    is_seen = CALLS[call]
    other.add_many(["a", "other"])
    clocks.go_on(OVER - 10, clock)
    assert is_seen(made, "a")
    assert made.is_kept("a")
    before = trips(clocks.client)
    clock.now += 9.5
    assert is_seen(made, "a")
    assert trips(clocks.client) == before
    # The server's clock stands still; that of the client alone says that the epoch may be over.
    clock.now += 0.5
    assert not made.is_kept("a")
    clocks.set(OVER)
    assert not made.exists("a")
    assert not is_seen(made, "a")


@pytest.mark.parametrize("asks", HELD)
def test_an_epoch_begins_when_it_was_asked_and_not_when_it_was_answered(clocks, clock, asks):
    """A slow reply: what is left of the epoch counts from before the request."""
    other, made = clocks.make(), clocks.make(clock=clock)
    other.add("a")
    clocks.go_on(OVER - 10, clock)
    answer = hold(asks(made), made._runtime)
    clock.now += 5
    answer()
    assert made.is_kept("a")
    clock.now += 4.5
    assert made.is_kept("a")
    clock.now += 0.5
    clocks.set(OVER)
    assert not made.is_kept("a")
    assert not made.exists("a")


def test_a_clock_that_goes_too_slowly_does_not_put_off_the_end(clocks):
    """As much as it may be slewed, while that of the server goes too fast."""
    slow = Clock(1 - DRIFT * 0.99)
    other, made = clocks.make(), clocks.make(clock=slow)
    other.add("a")
    clocks.go_on(LAST, slow)
    assert made.exists("a")
    clocks.go_on(OVER - 5, slow)
    assert made.is_kept("a")
    clocks.go_on(OVER, slow)
    assert not made.is_kept("a")
    assert not made.exists("a")


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("asks", HELD)
def test_a_late_answer_stays_in_its_epoch(clocks, clock, asks, is_set, is_slow):
    """Whether the end was awaited, or the server's clock was set forward to it."""
    other, made = clocks.make(), clocks.make(clock=clock)
    other.add_many(["a", "b"])
    clocks.go_on(OVER - 10, clock)
    if is_slow:
        # So that the cache knows the epoch already.
        made.exists("b")
        clock.now += 1
    answer = hold(asks(made), made._runtime)
    if is_set:
        clocks.set(OVER)
        clock.now += 0.2
    else:
        clocks.go_on(OVER, clock)
    assert not made.exists("c")
    answer()
    assert not made.is_kept("a")
    assert not made.exists("a")
    assert made.add("a")


@pytest.mark.parametrize("answered", ["exists", "add_many", "claim"])
def test_a_clock_that_is_set_forward_is_noticed_by_the_next_answer(clocks, clock, answered):
    other, made = clocks.make(), clocks.make(clock=clock)
    other.add_many(["a", "b", "other"])
    assert made.exists("a")
    clocks.set(OVER)
    # Another object, which has not asked for the time yet.
    clocks.make().add("seen")
    assert made.is_kept("a")
    clock.now += 0.2
    CALLS[answered](made, "seen" if answered == "claim" else "new")
    assert not made.is_kept("a")
    assert not made.exists("a")


def test_it_is_noticed_within_max_staleness_without_one(clocks, clock):
    other = clocks.make()
    made = clocks.make(clock=clock, max_staleness=2.0)
    other.add("a")
    assert made.exists("a")
    clocks.set(OVER)
    clock.now += 1.9
    assert made.exists("a")
    clock.now += 0.1
    assert not made.exists("a")


# -- renewals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_an_add_that_renews_is_not_left_out(clocks, clock, batch):
    other, made = clocks.make(), clocks.make(clock=clock, refresh=True)

    def add(item):
        return made.add_many([item, item]) == [True, False] if batch else made.add(item)

    assert add("a")
    assert other.add("b")
    before = trips(clocks.client)
    clocks.go_on(500, clock)
    assert not add("a")
    assert made.exists("a")
    assert made.exists_many(["a"]) == [True]
    assert trips(clocks.client) == before
    # In the next epoch.
    clocks.go_on(SLICE + 500, clock)
    assert made.exists("a")
    assert made.exists_many(["b", "a"]) == [True, True]
    assert not made.claim("b")
    assert not add("a")
    assert not add("b")
    before = trips(clocks.client)
    assert not add("a")
    assert not add("b")
    assert made.claim_many(["a"])[0].state is ClaimState.SEEN
    assert trips(clocks.client) == before
    for seconds, is_there in ((OVER, True), (OVER + SLICE - 1, True), (OVER + SLICE, False)):
        clocks.go_on(seconds, clock)
        for one in (other, made):
            assert one.exists_many(["a", "b"]) == [is_there] * 2
            assert one.exists("a") is is_there


def test_what_was_only_found_is_not_kept_where_adds_renew(clocks, clock):
    made = clocks.make(clock=clock, refresh=True)
    clocks.make().add_many(["a", "b", "c"])
    assert made.exists("a")
    assert made.exists_many(["b", "a"]) == [True, True]
    assert made.claim("c").state is ClaimState.SEEN
    assert made.kept_many(["a", "b", "c"]) == [False] * 3
    assert made.add_many(["a"]) == [False]
    assert made.kept_many(["a", "b", "c"]) == [True, False, False]


# -- claims --------------------------------------------------------------------------------------


def test_what_is_committed_is_kept_in_its_epoch(clocks, clock):
    other, made = clocks.make(), clocks.make(clock=clock)
    other.add("seen")
    unknown = made.claim("first")
    unknown.commit()
    assert made.claim("seen").state is ClaimState.SEEN
    assert made.kept_many(["first", "seen"]) == [False, True], "it was committed in some epoch"
    with made.claim("a") as work:
        assert work
    made.commit_many(made.claim_many(["b", "c"]))
    before = trips(clocks.client)
    assert [one.state for one in made.claim_many(["a", "b", "c"])] == [ClaimState.SEEN] * 3
    assert made.add("a") is False
    assert trips(clocks.client) == before
    clocks.go_on(SLICE, clock)
    assert made.kept_many(["a", "b", "c", "seen"]) == [False] * 4
    assert [one.state for one in made.claim_many(["a", "seen"])] == [ClaimState.SEEN] * 2
    assert made.kept_many(["a", "b", "c", "seen"]) == [True, False, False, True]
    clocks.go_on(OVER, clock)
    assert made.exists_many(["a", "b", "c", "seen"]) == [False] * 4
    assert made.claim("a").state is ClaimState.NEW


def test_what_others_forget_is_known_after_max_staleness_within_an_epoch_and_beyond(clocks):
    """Both bounds hold: that of the window, and that of what other clients forget."""
    clock = Clock()
    mine = clocks.make(clock=clock, max_staleness=100.0)
    other = clocks.make()
    assert mine.add_many(["a", "b", "c"]) == [True] * 3
    assert other.discard("a")
    # It has not heard, and was answered less than 100 s ago.
    assert mine.add("a") is False
    clocks.go_on(101, clock)
    assert mine.add("a") is True
    assert mine.add("a") is False, "and from here on it is kept"
    assert other.discard_many(["a", "b"]) == [True, True]
    assert mine.exists("a")
    clocks.go_on(202, clock)
    assert mine.exists_many(["a", "b", "c"]) == [False, False, True]
    # What this object forgets itself it knows at once.
    assert mine.add("a") is True
    assert mine.add("a") is False
    assert mine.discard("a") is True
    assert mine.exists("a") is False
    # The window counts from the first add on.
    clocks.go_on(LAST + 10, clock)
    assert mine.exists("c")
    clocks.set(OVER)
    clock.now += OVER - LAST - 10
    assert mine.exists_many(["a", "b", "c"]) == [False] * 3
    assert mine.add_many(["a", "c"]) == [True, True]
    assert other.discard("c") is True
    assert other.exists_many(["a", "c"]) == [True, False]
