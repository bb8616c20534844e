"""The near-cache of filters with a time window: nothing is seen when it is forgotten."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from moved_clock import stopped_server
from near_cache_tools import MANY, hold, trips
from window_clocks import LAST, LONG, OVER, SLICE, Clock, Clocks

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ClaimState,
    FilterLostError,
    once,
)
from bloomlock.filters import answers
from bloomlock.filters.claim import sessions_of
from bloomlock.filters.claim_session import ClaimOptions, commit_many
from bloomlock.filters.claims import claim_many
from bloomlock.filters.near_cache import NearCaching
from bloomlock.windows import DRIFT


@pytest.fixture(params=["valkey", "redis62"])
def clocks(request, tmp_path):
    with stopped_server(request.param, tmp_path) as (client, stop_at, url):
        yield Clocks(client, stop_at, url)


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
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_kept_is_forgotten_when_its_epoch_ends(clocks, clock, call, shards):
    other, made = clocks.make(shards=shards), clocks.make(clock=clock, shards=shards)
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


def test_within_an_epoch_it_is_asked_once(clocks, clock):
    made = clocks.make(clock=clock, shards=3)
    items = [str(number) for number in range(200)]
    assert made.add_many([*items, *items]) == [True] * 200 + [False] * 200
    assert made.add("new") is True
    for begin in (SLICE, 2 * SLICE, LAST):
        clocks.go_on(begin, clock)
        # Once again in each epoch.
        before = trips(clocks.client)
        assert not any(made.kept_many([*items, "new"]))
        assert made.exists_many(items) == [True] * 200
        assert made.exists("new")
        assert trips(clocks.client) > before
        before = trips(clocks.client)
        for seconds in (300, 600, 990):
            clocks.go_on(begin + seconds, clock)
            assert made.add_many([*items, "new", *items]) == [False] * 401
            assert made.exists_many(items) == [True] * 200
            assert made.add("new") is False
            assert made.claim("new").state is ClaimState.SEEN
            assert all(made.kept_many(items))
        assert trips(clocks.client) == before


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


def test_an_answer_without_the_time_ends_with_its_epoch_too(clocks, clock):
    other, made = clocks.make(), clocks.make(clock=clock)
    other.add_many(["a", "b"])
    clocks.go_on(OVER - 10, clock)
    assert made.exists("b")
    # Another cache, which has not heard of the epoch; the object knows it for 0.1 s.
    made._state.forget()
    before = clocks.client.info("commandstats")["cmdstat_time"]["calls"]
    assert made.exists("a")
    assert clocks.client.info("commandstats")["cmdstat_time"]["calls"] == before
    assert made.is_kept("a")
    clocks.go_on(OVER, clock)
    assert not made.is_kept("a")
    assert not made.exists("a")


def test_a_cache_that_another_follows_answers_nothing_any_more(clocks, clock):
    """Nor does it when an operation that has it still is answered."""
    made = clocks.make(clock=clock)
    assert made.add("a")
    near = made._state.near
    clocks.make().clear()
    made.reattach()
    assert near.is_over
    assert made._state.near is not near


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


def test_a_claim_that_does_not_say_the_time_puts_nothing_off(clocks, clock):
    other = clocks.make()
    made = clocks.make(clock=clock, max_staleness=2.0)
    other.add("a")
    assert made.claim("a").state is ClaimState.SEEN
    clocks.set(OVER)
    clock.now += 1.9
    assert made.is_kept("a")
    assert made.claim("new").state is ClaimState.NEW
    clock.now += 0.1
    assert not made.is_kept("a")


def test_a_clock_that_is_set_back_forgets_nothing(clocks, clock):
    made = clocks.make(clock=clock)
    clocks.go_on(3 * SLICE, clock)
    assert made.add("a")
    clocks.set(10)
    clock.now += 1
    assert made.add("b")
    for _ in range(3):
        assert made.exists_many(["a", "b"]) == [True, True]
        assert made.add("a") is False
        clock.now += 1


def test_a_clear_by_another_client_is_noticed_in_time(clocks, clock):
    made = clocks.make(clock=clock, max_staleness=2.0)
    assert made.add("a")
    clocks.make().clear()
    clock.now += 1.9
    assert made.exists("a")
    clock.now += 0.1
    with pytest.raises(FilterLostError):
        made.exists("a")
    made.reattach()
    assert made.add("a")
    assert made.add("a") is False


def test_what_the_object_does_itself_counts_at_once(clocks, clock):
    made = clocks.make(clock=clock, on_lost="recreate")
    assert made.add("a")
    made.clear()
    assert not made.exists("a")
    assert made.add("a")
    clocks.make().clear()
    clock.now += LONG
    assert made.add_many(["a", "b"]) == [True, True]


def test_threads_that_begin_a_cache_have_the_same_one(clocks, clock, monkeypatch):
    """What one of them is answered ends the cache that the other one reads."""
    made = clocks.make(clock=clock)
    state, start, taken = made._state, NearCaching.start, []

    def take():
        taken.append(state.ask_near(state.view).near)

    def start_slowly(*arguments, **options):
        monkeypatch.undo()
        other.start()
        other.join(0.05)
        return start(*arguments, **options)

    other = threading.Thread(target=take)
    monkeypatch.setattr(NearCaching, "start", start_slowly)
    take()
    other.join()
    assert taken[0] is taken[1] is state.near


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


def test_a_late_answer_to_a_commit_stays_in_its_epoch(clocks, clock):
    """What was committed in an epoch is to be renewed by an add in the next."""
    other, made = clocks.make(), clocks.make(clock=clock, refresh=True)
    other.add("seen")
    clocks.go_on(SLICE - 10, clock)
    made.add("seen")
    with made.claim("so that the server has the script"):
        pass
    answer = hold(commit_many(sessions_of([made.claim("a")])), made._runtime)
    clocks.go_on(SLICE, clock)
    made.add("seen")
    answer()
    assert not made.is_kept("a")
    assert made.add("a") is False
    clocks.go_on(OVER, clock)
    assert made.exists("a")


def test_once_goes_by_the_window(clocks, clock):
    made = clocks.make(clock=clock)
    calls = []

    @once(made, key="item")
    def work(item):
        calls.append(item)

    made.add("seen")
    for seconds in (0, 10, 500, SLICE, LAST, LAST + 500, OVER, OVER + 10):
        clocks.go_on(seconds, clock)
        work("a")
    assert calls == ["a", "a"]


def test_scripts_of_a_caller(clocks, clock):
    made = clocks.make(clock=clock)
    script = "return add(1)"
    assert made.run_script(script, ["a"]) == 1
    assert not made.is_kept("a")
    assert made.exists("a")
    assert made.is_kept("a")
    clocks.go_on(OVER, clock)
    assert not made.exists("a")
    assert made.run_script(script, ["a"]) == 1


# -- asyncio -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refresh", [False, True])
def test_asyncio(clocks, clock, refresh):
    async def main():
        shared = redis.asyncio.Redis.from_url(clocks.url)
        made = clock.of(
            await clocks.make(AsyncBloomFilter, client=shared, clock=clock, refresh=refresh)
        )
        items = [str(number) for number in range(50)]
        found = await asyncio.gather(*(made.add(item) for item in items * 2))
        assert sum(found) == 50
        for seconds in (500, SLICE, SLICE + 990, LAST, LAST + 990):
            clocks.go_on(seconds, clock)
            is_first = not seconds % SLICE
            before = trips(clocks.client)
            if not refresh:
                assert all(await asyncio.gather(*map(made.exists, items)))
                assert not any(await asyncio.gather(*map(made.add, items)))
            assert not any(await made.add_many(items[:30])) or (refresh and seconds == 0)
            assert all(await made.exists_many(items[:30]))
            assert await made.exists(items[0])
            assert made.is_kept(items[0])
            assert all(made.kept_many(items[:30]))
            assert (trips(clocks.client) > before) is is_first
        clocks.go_on(OVER, clock)
        assert not any(made.kept_many(items))
        assert await made.exists_many(items) == [refresh] * 30 + [False] * 20
        assert await made.add(items[40]) is True
        await made.close()
        await shared.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["open", "copy"])
def test_a_filter_that_was_there_before(clocks, clock, how):
    first = clocks.make()
    first.add("a")
    clocks.go_on(OVER - 10, clock)
    options = {"client": clocks.client, "near_cache": MANY, "max_staleness": LONG}
    made = BloomFilter.open("x", **options)
    if how == "copy":
        made = made.copy("y")
    clock.of(made)
    assert made.exists("a")
    assert made.is_kept("a")
    clocks.go_on(OVER, clock)
    assert not made.is_kept("a")
    assert not made.exists("a")


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
