"""A batch that follows the filter into another generation: each answer is about its own item."""

from __future__ import annotations

import pytest
from near_cache_tools import only, until_request

from bloomlock import BloomFilter
from bloomlock.errors import OutcomeUnknownError
from bloomlock.filters import answers

ITEMS = [f"i{number}" for number in range(300)]
THERE = set(ITEMS[::3])


def routes_of(strategy):
    return ("items", "bitmap") if strategy in ("atomic", "lua") else ("items",)


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


@pytest.mark.parametrize("on_unknown", ["raise", "new"])
def test_what_was_added_between_two_clears_and_is_then_seen_is_of_unknown_outcome(r, on_unknown):
    other = BloomFilter("f", 2000, client=r)
    made = BloomFilter.open("f", client=r, on_lost="recreate", on_unknown=on_unknown)
    core = answers.add_many(made._state, ["a", "b"], "items")
    step = until_request(core)
    other.clear()
    replies = made._runtime.run(only(step))
    # Both were added to a generation that is over when its header is read.
    other.clear()
    assert other.add("a")

    def go_on():
        answer = replies
        try:
            while True:
                answer = yield core.send(answer)
        except StopIteration as stop:
            return stop.value

    if on_unknown == "new":
        assert made._runtime.run(go_on()) == [True, True]
        return
    with pytest.raises(OutcomeUnknownError, match="cleared or rebuilt while an item") as caught:
        made._runtime.run(go_on())
    assert caught.value.results == [None, True]
