"""A batch that follows the filter into another generation: each answer is about its own item."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import redis
import redis.asyncio
from strategies import BITMAPS, STRATEGIES, maker_of

from bloomlock import AsyncBloomFilter, BloomFilter

ITEMS = [f"i{number}" for number in range(300)]
THERE = set(ITEMS[::3])


def routes_of(strategy):
    return ("items",) if strategy in ("lock", "native") else ("items", "script", "bitmap")


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("strategy", "layout"),
    [*itertools.product(BITMAPS, ["classic", "blocked"]), ("native", "classic")],
)
def test_each_item_gets_its_own_answer_after_a_clear_by_others(r, strategy, layout, shards):
    other = BloomFilter(
        "f", 2000, 1e-9, client=r, shards=shards, layout=layout, strategy=maker_of(strategy)
    )
    options = {"client": r, "strategy": strategy, "on_lost": "recreate"}
    for route in routes_of(strategy):
        # 16 go without arrays, 300 do not.
        for items in (ITEMS[:16], ITEMS):
            reader = BloomFilter.open("f", **options)
            writer = BloomFilter.open("f", **options)
            other.clear()
            other.update(THERE)
            seen = reader.exists_many(items, route=route)
            assert seen == [item in THERE for item in items]
            new = writer.add_many([*items, *items], route=route)
            assert new == [item not in THERE for item in items] + [False] * len(items)
            assert all(reader.exists_many(items, route=route))


@pytest.mark.parametrize("near_cache", [0, 2000])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_of_parts_of_the_batch(r, strategy, near_cache):
    """The near-cache answers some, and the first shard is found in the old generation."""
    made = BloomFilter("f", 2000, 1e-9, client=r, shards=4, strategy=strategy,
                       on_lost="recreate", near_cache=near_cache)  # fmt: skip
    made.update(THERE)
    assert made.exists_many(ITEMS) == [item in THERE for item in ITEMS]
    other = BloomFilter.open("f", client=r, strategy=maker_of(strategy))
    other.clear()
    other.update(THERE)
    assert made.exists_many(ITEMS) == [item in THERE for item in ITEMS]
    assert made.add_many(ITEMS) == [item not in THERE for item in ITEMS]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_clear_of_its_own_in_the_middle(valkey, r, strategy):
    async def run():
        client = redis.asyncio.Redis.from_url(valkey)
        made = await AsyncBloomFilter("f", 2000, 1e-9, client=client, shards=3, strategy=strategy)
        for number in range(3):
            mine = [f"{number} {item}" for item in ITEMS]
            core = made._state
            # The object's own clear has written; the batch goes by the view from before it.
            before = core.view
            await made.clear()
            await made.update(mine[::3])
            core.view = before
            assert await made.exists_many(mine) == [n % 3 == 0 for n in range(len(mine))]
            core.view = before
            assert await made.add_many(mine) == [n % 3 != 0 for n in range(len(mine))]
            core.view = before
            assert all(await made.exists_many(mine))
        await client.aclose()

    asyncio.run(run())


def test_items_are_hashed_anew_where_the_seeds_changed(r):
    made = BloomFilter("f", 2000, client=r, seeds=range(20), on_lost="recreate")
    made.add_many(ITEMS)
    # Another filter of that name; what was asked for before does not constrain what is opened.
    opened = BloomFilter.open("f", client=r, on_lost="recreate")
    opened._state.wanted = None
    made.delete()
    made = BloomFilter("f", 2000, client=r, seeds=range(100, 120))
    made.update(ITEMS[::3])
    assert opened.exists_many(ITEMS) == [n % 3 == 0 for n in range(300)]
