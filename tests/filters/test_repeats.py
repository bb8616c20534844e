"""Items that a batch repeats are asked for once, and each gets its own answer."""

from __future__ import annotations

import pytest
import redis
from strategies import STRATEGIES

from bloomlock import BloomFilter
from bloomlock.commands import EXEC
from bloomlock.effects import ConnectionLost, Request
from bloomlock.filters import answers

BATCH = ["a", "b", b"a", "a", "ä", "c", "ä".encode(), *["b"] * 500]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_of_each_is_new(client, strategy):
    made = BloomFilter("x", 1000, client=client, strategy=strategy)
    made.add("c")
    expected = [True, True, False, False, True, False, False, *[False] * 500]
    assert made.add_many(BATCH, route="items") == expected
    assert made.add_many(BATCH, route="items") == [False] * len(BATCH)
    asked = ["no", *BATCH, "no"]
    assert made.exists_many(asked, route="items") == [False, *[True] * len(BATCH), False]


@pytest.mark.parametrize("route", ["items", "bitmap"])
@pytest.mark.parametrize("strategy", ["atomic", "native"])
def test_of_a_repeated_item_whose_reply_was_lost_one_is_new(client, strategy, route):
    route = "items" if strategy == "native" else route
    made = BloomFilter("x", 1000, client=client, strategy=strategy, on_unknown="new")
    core = answers.add_many(made._state, ["a", "b", "a"] * 30, route)
    step = next(core)
    while True:
        # MULTI and EXEC alone ask whether the server takes transactions.
        empty = isinstance(step, Request) and len(step.commands) == 2 and step.commands[-1] == EXEC
        try:
            if empty:
                step = core.send([b"OK", []])
            else:
                lost = ConnectionLost(redis.ConnectionError("lost"), sent=True, replies=[])
                step = core.throw(lost)
        except StopIteration as stop:
            assert stop.value == [True, True, *[False] * 88]
            break


def test_a_repeat_costs_the_server_nothing(client):
    made = BloomFilter("x", 1_000_000, client=client)
    before = client.info("stats")["total_net_input_bytes"]
    made.add_many(["a", *["b"] * 1000])
    assert client.info("stats")["total_net_input_bytes"] - before < 5000


def test_what_is_known_after_an_error_is_known_of_repeats_too(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 20, client=client, on_full="raise", strategy="lua")
        batch = [str(number // 2) for number in range(4000)]
        with pytest.raises(Exception, match="full") as caught:
            made.add_many(batch, route="items")
        results = caught.value.results
        assert 40 <= len(results) < 4000
        assert results == [number % 2 == 0 for number in range(len(results))]
        assert all(made.exists_many(batch[: len(results)]))
