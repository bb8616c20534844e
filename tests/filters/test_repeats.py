"""Items that a batch repeats are asked for once, and each gets its own answer."""

from __future__ import annotations

import pytest
import redis
from strategies import STRATEGIES

from bloomlock import BloomFilter

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
