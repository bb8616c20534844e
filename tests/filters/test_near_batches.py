"""The near-cache under batches."""

from __future__ import annotations

import random

import pytest
import redis
import redis.asyncio
from near_cache_tools import (
    MANY,
    Clock,
    hold,
    lose_reply,
    only,
    trips,
    until_request,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from bloomlock import (
    BloomFilter,
    CapacityError,
    FilterLostError,
    PartialResultError,
)
from bloomlock.effects import ConnectionLost, Pause
from bloomlock.filters import answers


@pytest.mark.parametrize("route", ["items", "bitmap", "auto"])
def test_batches_ask_only_for_what_is_not_kept(valkey, route, seed):
    chance = random.Random(seed)
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 5000, 1e-9, client=client, near_cache=MANY)
        seen: set[str | bytes] = set()

        def offer(item):
            data = item.encode() if isinstance(item, str) else item
            return data not in seen and not seen.add(data)

        for size in (1, 2, 40, 300):
            for _ in range(5):
                items = [
                    text if chance.random() < 0.7 else text.encode()
                    for text in (str(chance.randrange(600)) for _ in range(size))
                ]
                asks = made.exists_many(iter(items), route=route)
                assert asks == [(i.encode() if isinstance(i, str) else i) in seen for i in items]
                assert made.add_many(items, route=route) == [offer(item) for item in items]
                before = trips(client)
                assert made.add_many(items, route=route) == [False] * size
                assert made.exists_many(items, route=route) == [True] * size
                assert trips(client) == before
                assert made.add(items[0]) is False
                assert trips(client) == before


def test_a_batch_is_answered_in_order_around_an_error(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 20, client=client, near_cache=MANY, on_full="raise")
        kept = []
        with pytest.raises(CapacityError):
            for number in range(1000):
                made.add(str(number))
                kept.append(str(number))
        BloomFilter.open("x", client=client)
        made._state.near._young -= {"1", "3"}
        before = made.exists_many(["0", "1", "2"])
        assert before == [True] * 3
        made._state.near._young -= {"1", "3"}
        with pytest.raises(CapacityError) as caught:
            made.add_many(["0", "1", "2", "3", "4", "new", "5", "6"])
        assert caught.value.results == [False] * 5
        with pytest.raises(TypeError, match="5") as failed:
            made.add_many(["0", "1", "2", "3", "4", 5])
        assert not isinstance(failed.value, PartialResultError)


def test_what_is_owed_is_told_by_batches_too(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    clock = Clock(made)
    made.add("b")
    BloomFilter.open("x", client=r).clear()
    clock.now += 1
    with pytest.raises(FilterLostError):
        made.add_many(["a", "b"])
    made.reattach()
    assert made.exists_many(["a", "b"]) == [True, True]
    assert made.add_many(["a", "b", "a"]) == [True, True, False]
    assert made.add_many(["a", "b"]) == [False, False]


@pytest.mark.parametrize("carry_out", [answers.add_many, answers.exists_many])
def test_a_late_batch_stays_in_its_generation(r, carry_out):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    made.update(["a", "b"])
    go_on = hold(carry_out(made._state, ["a", "b"], "items"), made._runtime)
    made.clear()
    assert go_on() == [carry_out is answers.exists_many] * 2
    assert made.exists_many(["a", "b"]) == [False, False]
    assert made.add_many(["a", "b"]) == [True, True]


def test_an_add_of_a_batch_whose_reply_was_lost_is_nothing_to_keep(r):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, on_unknown="new")
    made.add("b")
    core = answers.add_many(made._state, ["a", "b"], "items")
    assert lose_reply(core) == [True, False]
    assert made.exists_many(["a", "b"]) == [False, True]


@pytest.mark.parametrize("on_lost", ["recreate", "raise"])
def test_a_batch_that_finds_the_filter_cleared_takes_back_what_was_kept(r, on_lost):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY, on_lost=on_lost)
    Clock(made)
    assert made.add_many(["a", "b"]) == [True, True]
    BloomFilter.open("x", client=r).clear()
    assert made.add_many(["a", "b"]) == [False, False]
    if on_lost == "recreate":
        assert made.add_many(["a", "c", "b", "c"]) == [True, True, True, False]
        assert made.add_many(["a", "b", "c"]) == [False] * 3
    else:
        with pytest.raises(FilterLostError) as caught:
            made.exists_many(["a", "c", "b"])
        assert True not in caught.value.results
        with pytest.raises(FilterLostError):
            made.add_many(["a", "b"])


@pytest.mark.parametrize("sent", [True, False])
def test_what_was_added_beside_kept_items_is_reported_whatever_becomes_of_those(r, sent):
    made = BloomFilter("x", 1000, client=r, near_cache=MANY)
    Clock(made)
    made.add("a")
    core = answers.add_many(made._state, ["a", "b", "c"], "items")
    step = until_request(core)
    BloomFilter.open("x", client=r).clear()
    made.reattach()
    # The object was attached anew meanwhile, so the batch goes on, and asks about what was kept.
    step = core.send(made._runtime.run(only(step)))
    cut = ConnectionLost(RedisConnectionError("cut"), sent=sent, replies=[])
    with pytest.raises(PartialResultError) as caught:
        while True:
            step = core.send(None) if isinstance(step, Pause) else core.throw(cut)
    assert caught.value.results == [None, True, True]
