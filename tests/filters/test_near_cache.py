"""The near-cache under a filter: which answers need no round trip, and which are never given."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio
from near_cache_tools import (
    MANY,
    Clock,
    hold,
    lose_reply,
    slowly,
    trips,
    until_request,
)
from strategies import STRATEGIES

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    MemoryBloomFilter,
    OutcomeUnknownError,
)
from bloomlock.filters import answers, inspection


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_positive_answer_is_asked_for_once(valkey, strategy):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, client=client, strategy=strategy, near_cache=MANY)
        other = BloomFilter("x", 1000, client=client, strategy=strategy)
        other.add("there")
        assert made.add("new") is True
        assert made.exists("there") is True
        assert made.exists("not there") is False
        before = trips(client)
        kept = ["new", "there", "not there", "other"]
        assert [made.is_kept(item) for item in kept] == [True, True, False, False]
        for _ in range(3):
            assert made.add("new") is False
            assert made.add("there") is False
            assert "new" in made
            assert made.exists("there") is True
        assert trips(client) == before
        other.add("not there")
        assert made.exists("not there") is True
        assert trips(client) > before
        made.close()


def test_the_asyncio_twin(valkey):
    async def run():
        shared = redis.asyncio.Redis.from_url(valkey)
        made = await AsyncBloomFilter("x", 1000, client=shared, near_cache=MANY)
        assert await made.add("new") is True
        assert await asyncio.gather(*(made.add(f"{n % 50}") for n in range(100))) == [
            n < 50 for n in range(100)
        ]
        before = trips(client)
        assert await made.add("new") is False
        assert await made.exists("new") is True
        answers = await asyncio.gather(*(made.add(f"{n % 50}") for n in range(100)))
        assert not any(answers)
        assert trips(client) == before
        await made.clear()
        assert await asyncio.gather(*(made.add(f"{n % 50}") for n in range(100))) == [
            n < 50 for n in range(100)
        ]
        await made.delete()
        with pytest.raises(FilterLostError):
            await made.add("new")
        await made.close()
        await shared.aclose()

    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        asyncio.run(run())


def test_off_by_default(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, client=client)
        made.add("a")
        before = trips(client)
        made.add("a")
        assert trips(client) == before + 1
        assert not made.is_kept("a")
        assert made.kept_many(["a"]) == [False]


def test_a_clear_by_another_client_is_noticed_in_time(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, max_staleness=2.0)
    clock = Clock(made)
    made.add("a")
    clock.now += 1.5
    assert made.exists("b") is False
    clock.now += 0.5
    BloomFilter.open("x", client=r).clear()
    clock.now += 1.499
    assert made.add("a") is False
    clock.now += 0.001
    with pytest.raises(FilterLostError):
        made.exists("a")
    clock.now -= 1
    for carry_out in (made.exists, made.add):
        with pytest.raises(FilterLostError):
            carry_out("a")
    made.reattach()
    assert made.exists("a") is False
    assert made.add("a") is True


def test_recreate_goes_on_in_the_new_generation(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, on_lost="recreate")
    clock = Clock(made)
    assert made.add_many(["a", "b"]) == [True, True]
    BloomFilter.open("x", client=r).clear()
    clock.now += 1
    assert made.add("a") is True
    assert made.add("b") is True
    assert made.add("a") is False


def test_time_counts_from_before_the_request(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, max_staleness=1.0)
    clock = Clock(made)
    for carry_out in (answers.add, answers.exists):
        made._runtime.run(slowly(carry_out(made._state, "a"), clock, 0.9))
        before = trips(r)
        clock.now += 0.099
        assert made.exists("a")
        assert trips(r) == before
        clock.now += 0.001
        assert made.exists("a")
        assert trips(r) == before + 1


@pytest.mark.parametrize("carry_out", [answers.add, answers.exists])
@pytest.mark.parametrize("how", ["clear", "replace", "reattach"])
def test_a_late_answer_stays_in_its_generation(r, how, carry_out):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.add("a")
    go_on = hold(carry_out(made._state, "a"), made._runtime)
    if how == "clear":
        made.clear()
    elif how == "replace":
        made.delete()
        made.reattach()
    else:
        BloomFilter.open("x", client=r).clear()
        made.reattach()
    assert go_on() is (carry_out is answers.exists)
    assert made.exists("a") is False
    assert made.add("a") is True
    assert made.add("a") is False


def test_a_late_answer_is_not_given_after_a_loss(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.add("a")
    go_on = hold(answers.exists(made._state, "a"), made._runtime)
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError):
        made.exists("b")
    assert go_on() is True
    for _ in range(2):
        with pytest.raises(FilterLostError):
            made.exists("a")


def test_what_is_owed_is_told_new_although_it_is_there(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    clock = Clock(made)
    BloomFilter.open("x", client=r).clear()
    clock.now += 1
    with pytest.raises(FilterLostError):
        made.add("a")
    made.reattach()
    assert made.exists("a") is True
    assert made.add("a") is True
    assert made.add("a") is False


def test_a_reply_that_was_lost_is_nothing_to_keep(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, on_unknown="new")
    made.add("b")
    assert made._state.near.knows("b")
    assert lose_reply(answers.add(made._state, "a")) is True
    assert made.exists("a") is False


@pytest.mark.parametrize(
    ("carry_out", "items"),
    [(answers.add, "c"), (answers.add_many, ["c", "d"]), (answers.add_many, ["a", "c"])],
)
def test_after_a_failure_the_server_is_asked_first(r, carry_out, items):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.add("a")
    with pytest.raises(OutcomeUnknownError):
        lose_reply(carry_out(made._state, items))
    before = trips(r)
    assert made.add("a") is False
    assert trips(r) == before + 1
    assert made.add("a") is False
    assert trips(r) == before + 1


def test_a_full_filter_still_knows_what_it_knows(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 20, client=client, near_cache=MANY, on_full="raise")
        added = []
        with pytest.raises(CapacityError):
            for number in range(1000):
                made.add(str(number))
                added.append(str(number))
        before = trips(client)
        assert [made.add(item) for item in added] == [False] * len(added)
        assert trips(client) == before


@pytest.mark.parametrize("how", ["clear", "delete", "copy"])
def test_nothing_is_kept_across_what_the_object_does_itself(r, how):
    made = BloomFilter("x", 1000, client=r, near_cache=5, max_staleness=0.5)
    Clock(made)
    made.add("a")
    if how == "clear":
        made.clear()
        assert made.add("a") is True
    elif how == "delete":
        made.delete()
        with pytest.raises(FilterLostError):
            made.add("a")
    else:
        copied = made.copy("y")
        made.clear()
        assert copied.exists("a") is True
        assert made.exists("a") is False
        assert copied._state.caching.size == 5
        assert copied._state.caching.max_staleness == 0.5


@pytest.mark.parametrize("how", ["clear", "delete"])
def test_nor_by_the_asyncio_twin(r, how):
    async def run():
        url = r.connection_pool.connection_kwargs
        shared = redis.asyncio.Redis(unix_socket_path=url["path"])
        made = await AsyncBloomFilter("x", 1000, client=shared, near_cache=5)
        Clock(made)
        await made.add("a")
        if how == "clear":
            await made.clear()
            assert await made.add("a") is True
        else:
            await made.delete()
            with pytest.raises(FilterLostError):
                await made.add("a")
        await made.close()
        await shared.aclose()

    asyncio.run(run())


def test_bad_parameters(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        for face in (BloomFilter, AsyncBloomFilter):
            with pytest.raises(ConfigurationError, match="near_cache must be"):
                face("x", 1000, client=client, near_cache=-1)
            with pytest.raises(ConfigurationError, match="max_staleness must be"):
                face("x", 1000, client=client, near_cache=1, max_staleness=0)
        with pytest.raises(ConfigurationError, match="max_staleness must be"):
            BloomFilter.open("x", client=client, max_staleness=-1)
        assert client.keys("*") == []


HOW_A_LOSS_IS_FOUND = {
    "count": lambda made: made.count(),
    "info": lambda made: made.info(),
    "to_memory": lambda made: made.to_memory(),
    "copy": lambda made: made.copy("y"),
    "merge": lambda made: made.update(MemoryBloomFilter(1000)),
    "update": lambda made: made.update(["b"]),
    "add_many": lambda made: made.add_many(["b", "c"]),
    "exists_many": lambda made: made.exists_many(["a", "b"]),
    "exists": lambda made: made.exists("b"),
}


@pytest.mark.parametrize("how", HOW_A_LOSS_IS_FOUND)
def test_after_a_loss_nothing_is_given_until_reattach(r, how):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.add("a")
    BloomFilter.open("x", client=r).clear()
    with pytest.raises(FilterLostError):
        HOW_A_LOSS_IS_FOUND[how](made)
    for ask in (made.exists, made.add):
        with pytest.raises(FilterLostError):
            ask("a")
    for ask in (made.add_many, made.exists_many):
        with pytest.raises(FilterLostError):
            ask(["a"])
    made.reattach()
    assert made.exists("a") is False
    assert made.add("a") is True


def test_after_a_reattach_that_failed_nothing_is_given(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.add("a")
    r.delete("bloomlock:{x}:bits")
    with pytest.raises(FilterLostError):
        made.reattach()
    for ask in (made.exists, made.add):
        with pytest.raises(FilterLostError):
            ask("a")


@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
def test_an_update_asks_the_server_about_what_is_kept(r, on_lost):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, on_lost=on_lost)
    items = [str(number) for number in range(300)]
    made.add_many(items)
    other = BloomFilter.open("x", client=r)
    other.clear()
    if on_lost == "raise":
        with pytest.raises(FilterLostError):
            made.update(items)
        made.reattach()
    made.update(items)
    assert all(other.exists_many(items))


@pytest.mark.parametrize(
    "start",
    [inspection.count, lambda core: answers.update(core, ["b"], "items")],
    ids=["count", "update"],
)
def test_what_failed_ends_the_answers_until_the_server_is_heard(r, start):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.add("a")
    under_way = start(made._state)
    until_request(under_way)
    with pytest.raises(redis.ConnectionError):
        under_way.throw(redis.ConnectionError("gone"))
    before = trips(r)
    assert made.exists("a") is True
    assert trips(r) == before + 1


@pytest.mark.usefixtures("r")
def test_asyncio_knows_what_is_kept(valkey):
    async def main():
        async with AsyncBloomFilter(
            "x", 1000, client=valkey, near_cache=10, max_staleness=600
        ) as made:
            assert not made.is_kept("a")
            await made.add("a")
            await made.exists("a")
            assert made.is_kept("a")
            assert not made.is_kept("b")
            assert made.kept_many(["b", "a", b"a", "a"]) == [False, True, False, True]
        async with AsyncBloomFilter("x", 1000, client=valkey) as made:
            await made.add("a")
            assert not made.is_kept("a")
            assert made.kept_many(["a", "a"]) == [False, False]

    asyncio.run(main())
