"""Batches whose bits are merged as a whole: exact, in the right generation, nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter

import numpy as np
import pytest
import redis
from proxy import Proxy

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    FilterLostError,
    MemoryBloomFilter,
    OutcomeUnknownError,
)
from bloomlock.filters.batches import choose
from bloomlock.filters.routes import RouteTimes
from bloomlock.strategies import bitmap

SHAPES = {
    "classic": {},
    "blocked": {"layout": "blocked"},
    "seeds": {"seeds": range(12)},
    "shards": {"shards": 3},
    "blocked shards": {"layout": "blocked", "shards": 2},
}


@pytest.fixture
def empty(valkey):
    with redis.Redis.from_url(valkey) as made:
        made.flushall()
        yield made


@pytest.fixture
def small_parts(monkeypatch):
    """Shards of this size are merged in parts, of which most hold some of a thousand items."""
    monkeypatch.setattr(bitmap, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(bitmap, "PART_BYTES", 640)


def words(start, stop):
    return [f"https://example.org/{number}" for number in range(start, stop)]


def calls(client, command):
    return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bitmap_says_and_sets_what_items_do(client, shape):
    one = BloomFilter("one", 5000, 1e-4, client=client, **SHAPES[shape])
    many = BloomFilter("many", 5000, 1e-4, client=client, **SHAPES[shape])
    batch = words(0, 1000) + words(500, 1500) + ["é", "é".encode()]
    for start in (0, 700):
        expected = one.add_many(batch[start:], route="items")
        assert many.add_many(batch[start:], route="bitmap") == expected
    asked = words(1400, 3000)
    assert many.exists_many(asked, route="bitmap") == one.exists_many(asked, route="items")
    many.update(words(1500, 2500), route="bitmap")
    one.update(words(1500, 2500), route="items")
    for mine, theirs in zip(many.to_memory().images(), one.to_memory().images(), strict=True):
        assert np.array_equal(mine, theirs)
    assert not client.keys("*merge*")


@pytest.mark.parametrize("shape", ["blocked", "blocked shards"])
def test_a_large_blocked_filter_is_exact_in_parts(empty, small_parts, shape):
    test_a_bitmap_says_and_sets_what_items_do(empty, shape)


@pytest.mark.parametrize("shape", ["classic", "shards"])
def test_a_large_classic_filter_is_updated_in_parts(empty, small_parts, shape):
    made = BloomFilter("x", 5000, client=empty, **SHAPES[shape])
    made.update(words(0, 2000), route="bitmap")
    memory = MemoryBloomFilter(5000, **SHAPES[shape])
    memory.update(words(0, 2000))
    for mine, theirs in zip(made.to_memory().images(), memory.images(), strict=True):
        assert np.array_equal(mine, theirs)
    # With answers all bits of an item have to be merged at one instant.
    before = calls(empty, "bitop")
    assert made.add_many(words(0, 3000)) == [False] * 2000 + [True] * 1000
    assert calls(empty, "bitop") == before
    assert made.info().route == "items"


def test_the_way_that_takes_less_time_is_taken(empty, caplog):
    made = BloomFilter("x", 100_000, client=empty)
    caplog.set_level(logging.DEBUG, "bloomlock")
    batch = words(0, 3000)
    assert made.info().route == ""
    before = calls(empty, "bitop")
    # Each without what a busy machine teaches it.
    made._state.routes = RouteTimes()
    made.update(batch)
    made._state.routes = RouteTimes()
    made.add_many(batch)
    assert calls(empty, "bitop") - before == 2
    assert made.info().route == "bitmap"
    assert "3000 items go by bitmap; expected" in caplog.text
    # As a client sees it whose link makes bitmaps slow.
    slow = made._state.routes = RouteTimes()
    chosen = choose(made._state, made._state.view, 3000, "auto", write=True)
    slow.note_batch("bitmap", chosen.batch, 10.0)
    slow.note_batch("items", chosen.batch, 0.01)
    before = calls(empty, "bitop")
    made.update(batch)
    made.add_many(batch)
    assert calls(empty, "bitop") == before
    assert made.info().route == "items"
    assert "3000 items go by items; expected" in caplog.text


@pytest.mark.parametrize("route", ["auto", "bitmap"])
def test_batches_teach_their_route(empty, route):
    made = BloomFilter("x", 100_000, client=empty, on_lost="recreate")
    ticks = iter([0.0, 0.7, 10.0, 20.0])
    made._state.clock = lambda: next(ticks)
    # Without what a busy machine has taught it.
    routes = made._state.routes = RouteTimes()
    batch = choose(made._state, made._state.view, 3000, "auto", write=True).batch
    assert routes.expected_s("bitmap", batch) < 1
    assert made.add_many(words(0, 3000), route=route) == [True] * 3000
    assert routes.expected_s("bitmap", batch) == pytest.approx(0.7, rel=0.01)
    # A batch that met another generation was asked more than once, and the filter looked for.
    BloomFilter.open("x", client=empty).clear()
    assert made.add_many(words(0, 3000), route=route) == [True] * 3000
    assert routes.expected_s("bitmap", batch) < 1


@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction"])
def test_every_item_has_one_winner_whichever_way_it_comes(valkey, empty, strategy, seed):
    items = words(0, 6000)
    won: list[str] = []

    def offer(number):
        order = list(items)
        random.Random(seed + number).shuffle(order)
        made = BloomFilter("race", 50_000, 1e-9, client=valkey, strategy=strategy)
        route = ("bitmap", "items", "script", "auto")[number]
        for start in range(0, len(order), 1000):
            batch = order[start : start + 1000]
            batch += batch[:10]
            answers = made.add_many(batch, route=route)
            won.extend(item for item, new in zip(batch, answers, strict=True) if new)
            assert all(made.exists_many(batch[:100]))
        made.close()

    threads = [threading.Thread(target=offer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(won) == Counter(items)


@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "pipeline"])
def test_nothing_is_written_to_another_generation(empty, strategy):
    made = BloomFilter("x", 5000, client=empty, strategy=strategy)
    other = BloomFilter("x", 5000, client=empty)
    other.clear()
    for route in (made.add_many, made.update):
        with pytest.raises(FilterLostError, match="cleared or replaced"):
            route(words(0, 1000), route="bitmap")
        assert other.info().bits_set == 0
        made.reattach()
        other.clear()
    made.reattach()
    other.delete()
    with pytest.raises(FilterLostError, match="is missing"):
        made.add_many(words(0, 1000), route="bitmap")
    assert not empty.keys("*")


@pytest.mark.parametrize("shape", ["classic", "blocked"])
def test_a_filter_that_was_cleared_is_followed_where_asked(empty, small_parts, shape):
    made = BloomFilter("x", 5000, client=empty, on_lost="recreate", **SHAPES[shape])
    made.add_many(words(0, 1000), route="bitmap")
    BloomFilter("x", 5000, client=empty, **SHAPES[shape]).clear()
    assert made.add_many(words(0, 1500), route="bitmap") == [True] * 1500
    BloomFilter.open("x", client=empty).clear()
    made.update(words(0, 100), route="bitmap")
    assert made.exists_many(words(0, 101)) == [True] * 100 + [False]
    BloomFilter.open("x", client=empty).delete()
    assert made.exists_many(words(0, 100), route="bitmap") == [False] * 100


@pytest.mark.parametrize("denied", ["-eval -evalsha", "-bitop", "-multi", "-unlink -del"])
def test_where_it_is_forbidden_items_are_sent(client, denied):
    rules = ["on", ">pw", "~*", "&*", "+@all", *denied.split()]
    client.execute_command("ACL", "SETUSER", "some", *rules)
    options = client.connection_pool.connection_kwargs | {"username": "some", "password": "pw"}
    BloomFilter("x", 5000, client=client)
    with redis.Redis(connection_pool=redis.ConnectionPool(
        connection_class=client.connection_pool.connection_class, **options
    )) as restricted:  # fmt: skip
        made = BloomFilter("x", 5000, client=restricted)
        batch = words(0, 1000)
        assert made.add_many([*batch, *batch], route="bitmap") == [True] * 1000 + [False] * 1000
        assert made.add_many(words(500, 1500)) == [False] * 500 + [True] * 500
        made.update(words(2000, 3000), route="bitmap")
        assert made.exists_many(words(1000, 3000), route="bitmap") == (
            [True] * 500 + [False] * 500 + [True] * 1000
        )
    # What could not be deleted goes by itself.
    assert all(0 < client.ttl(key) <= 60 for key in client.keys("*merge*"))
    client.execute_command("ACL", "DELUSER", "some")


def test_a_filter_of_the_process_is_merged_and_fetched(client):
    made = BloomFilter("x", 5000, client=client, shards=2)
    made.add("before")
    memory = MemoryBloomFilter(5000, shards=2)
    memory.update(words(0, 1000))
    made.update(memory)
    assert made.exists_many(["before", *words(0, 1001)]) == [True] * 1001 + [False]
    fetched = made.to_memory()
    assert fetched.exists_many(["before", *words(0, 1001)]) == [True] * 1001 + [False]
    assert fetched.add("only here")
    assert not made.exists("only here")
    with pytest.raises(ConfigurationError, match="the same: this one has .* the other"):
        made.update(MemoryBloomFilter(5000, shards=1))
    with pytest.raises(ConfigurationError, match="the same"):
        made.update(MemoryBloomFilter(5000, 1e-5, shards=2))
    BloomFilter("x", 5000, client=client, shards=2).clear()
    for move in (lambda: made.update(memory), made.to_memory):
        with pytest.raises(FilterLostError, match="cleared"):
            move()
        made.reattach()
        BloomFilter("x", 5000, client=client, shards=2).clear()


def test_a_batch_in_blocks_goes_by_script_and_by_items_where_it_may_not(client):
    made = BloomFilter("x", 100_000, client=client, layout="blocked")
    before = calls(client, "evalsha")
    assert made.add_many(words(0, 100)) == [True] * 100
    assert calls(client, "evalsha") > before
    client.execute_command(
        "ACL", "SETUSER", "some", "on", ">pw", "~*", "&*", "+@all", "-@scripting"
    )
    options = client.connection_pool.connection_kwargs | {"username": "some", "password": "pw"}
    pool = redis.ConnectionPool(connection_class=client.connection_pool.connection_class, **options)
    with redis.Redis(connection_pool=pool) as restricted:
        other = BloomFilter("x", 100_000, client=restricted, layout="blocked")
        before = calls(client, "bitfield")
        assert other.add_many(words(50, 150)) == [False] * 50 + [True] * 50
        assert other.exists_many(words(100, 200), route="script") == [True] * 50 + [False] * 50
        assert calls(client, "bitfield") > before
    client.execute_command("ACL", "DELUSER", "some")


async def by_asyncio(url):
    async with AsyncBloomFilter("x", 5000, client=url) as made:
        assert await made.add_many(words(0, 1000), route="bitmap") == [True] * 1000
        assert await made.add_many(words(500, 1500), route="items") == [False] * 500 + [True] * 500
        memory = await made.to_memory()
        assert memory.exists_many(words(0, 1501)) == [True] * 1500 + [False]
        memory.add("more")
        await made.update(memory)
        await made.update(words(2000, 2500), route="bitmap")
        assert await made.exists_many(["more", "not", *words(2000, 2500)], route="bitmap") == [
            True,
            False,
            *[True] * 500,
        ]


def test_the_same_by_asyncio(empty, valkey):
    asyncio.run(by_asyncio(valkey))


@pytest.mark.parametrize("at", range(7))
def test_a_reply_that_is_cut_anywhere_is_a_lost_reply(valkey, empty, at):
    """The bits of the shard are received past the parser: no answer is taken from half of them."""
    batch = words(0, 1000)
    with Proxy(valkey, handshake=False) as proxy:
        made = BloomFilter("x", 50_000, client=proxy.client())
        made.add_many(batch[:10], route="bitmap")
        proxy.deafen(at)
        try:
            answers = made.add_many(batch, route="bitmap")
        except OutcomeUnknownError as error:
            assert error.results == [None] * 1000
            assert at > 1, "MULTI, EXEC is repeated; of the transaction all is unknown"
        else:
            assert answers == [False] * 10 + [True] * 990
        assert proxy.lost == 1
        for text in (batch, words(2000, 3000)):
            expected = made.exists_many(text, route="items")
            assert made.exists_many(text, route="bitmap") == expected
        made.update(words(2000, 3000), route="bitmap")
        assert made.exists_many(words(2000, 3000), route="bitmap") == [True] * 1000


def test_threads_do_not_share_images_or_replies(valkey, empty):
    made = BloomFilter("x", 40_000, client=valkey)
    answers: dict[int, list[bool]] = {}

    def add(number):
        mine = words(5000 * number, 5000 * (number + 1))
        answers[number] = made.add_many(mine, route="bitmap")
        answers[number] += made.exists_many(mine, route="bitmap")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(6), [True] * 10_000)
    memory = MemoryBloomFilter(40_000)
    memory.update(words(0, 30_000))
    assert np.array_equal(made.to_memory().images()[0], memory.images()[0])


def test_an_impossible_route_is_refused(empty):
    made = BloomFilter("x", 5000, client=empty, strategy="lock")
    with pytest.raises(ConfigurationError, match="route must be 'auto' or 'items' with strategy"):
        made.add_many(["a"], route="bitmap")
    for operation in (made.add_many, made.exists_many, made.update):
        with pytest.raises(
            ConfigurationError, match="route must be 'auto', 'items', 'script' or 'bitmap'"
        ):
            operation(["a"], route="nonsense")
    assert made.count() == 0
