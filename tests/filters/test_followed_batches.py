"""A batch that follows the filter into another generation: each answer is about its own item."""

from __future__ import annotations

import pytest

from bloomlock import BloomFilter

ITEMS = [f"i{number}" for number in range(300)]
THERE = set(ITEMS[::3])


def routes_of(strategy):
    return ("items", "script", "bitmap") if strategy in ("atomic", "lua") else ("items",)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "pipeline", "lock"])
def test_each_item_gets_its_own_answer_after_a_clear_by_others(r, strategy, shards):
    other = BloomFilter("f", 2000, 1e-9, client=r, shards=shards)
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
