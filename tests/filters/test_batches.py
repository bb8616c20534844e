"""A batch goes to all shards at once and follows the filter; each answer is about its own item.

Round trips are counted, not timed.
"""

from __future__ import annotations

import pytest
import redis
from near_cache_tools import only, until_request
from strategies import STRATEGIES
from turns import Turns

from bloomlock import BloomFilter
from bloomlock.errors import BatchError, OutcomeUnknownError
from bloomlock.filters import answers

ITEMS = [str(number) for number in range(100)]
HUNDREDS = [f"i{number}" for number in range(300)]
THERE = set(HUNDREDS[::3])
WARM = [f"warm {number}" for number in range(100)]


@pytest.fixture
def turns():
    return Turns()


COUNTED = [
    *((strategy, "items") for strategy in ("atomic", "lua", "transaction", "pipeline")),
    ("atomic", "bitmap"),
    ("lua", "bitmap"),
]


@pytest.mark.parametrize("shards", [1, 64])
@pytest.mark.parametrize(("strategy", "route"), COUNTED)
def test_a_batch_costs_the_round_trips_of_one_shard(r, valkey, turns, strategy, route, shards):
    # It first asks whether transactions are allowed.
    adding = 2 if route == "bitmap" else 1
    if route == "bitmap":
        # The reply of a single bitmap goes past the parser, whose reads are counted.
        shards = max(shards, 2)
    BloomFilter("f", 5000, 1e-9, client=r, shards=shards)
    with turns.client(valkey) as client:
        made = BloomFilter.open("f", client=client, strategy=strategy)
        # Scripts may be missing, and the connection may have to be opened.
        made.add_many(WARM, route=route)
        made.exists_many(WARM, route=route)
        assert turns.of(lambda: made.add_many(ITEMS, route=route)) == adding
        assert turns.of(lambda: made.update(ITEMS, route=route)) == adding
        assert turns.of(lambda: made.exists_many(ITEMS, route=route)) == 1
        assert made.add_many(ITEMS, route=route) == [False] * 100


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_item_costs_one_round_trip_and_a_lock_two_more(r, valkey, turns, strategy):
    with turns.client(valkey) as client:
        made = BloomFilter("f", 5000, client=client, strategy=strategy)
        made.add("warm: the script is loaded"), made.exists("warm")
        assert turns.of(lambda: made.add("a")) == (3 if strategy == "lock" else 1)
        assert turns.of(lambda: made.exists("a")) == 1


@pytest.mark.parametrize("shards", [2, 64])
def test_other_operations_cost_the_round_trips_of_two_shards(r, valkey, turns, shards):
    with turns.client(valkey) as client:
        BloomFilter("warm", 5000, client=client, shards=shards).delete()
        found = {
            "created": turns.of(lambda: BloomFilter("f", 5000, client=client, shards=shards)),
            "attached": turns.of(lambda: BloomFilter.open("f", client=client)),
        }
        made = BloomFilter.open("f", client=client)
        made.update(WARM)
        found["counted"] = turns.of(made.count)
        found["known"] = turns.of(made.info)
        found["cleared"] = turns.of(made.clear)
        found["deleted"] = turns.of(made.delete)
    # An attachment looks at the descriptor, at the shards and at the fill.
    assert found == {
        "created": 10, "attached": 3, "counted": 1, "known": 3, "cleared": 9, "deleted": 4,
    }  # fmt: skip


def test_a_shard_that_is_refused_leaves_the_others_known(r, valkey):
    made = BloomFilter("f", 5000, 1e-9, client=r, shards=8)
    items = [str(number) for number in range(300)]
    view = made._state.view
    mine = [n for n, item in enumerate(items) if view.hasher.locate(item.encode())[0] == 3]
    r.execute_command("ACL", "SETUSER", "some", "on", ">word", "+@all", "~*")
    with redis.Redis.from_url(valkey.replace("unix://", "unix://some:word@")) as client:
        opened = BloomFilter.open("f", client=client)
        allowed = [f"~{shard.key}*" for n, shard in enumerate(view.shards) if n != 3]
        r.execute_command("ACL", "SETUSER", "some", "resetkeys", *allowed)
        for batch in (items, items[:100]):
            with pytest.raises(BatchError) as caught:
                opened.add_many(batch, route="items")
            known = caught.value.results
            unknown = [n for n in range(len(batch)) if n >= len(known) or known[n] is None]
            assert unknown == [n for n in mine if n < len(batch)]
    r.execute_command("ACL", "DELUSER", "some")
    found = made.exists_many(items)
    assert [n for n, seen in enumerate(found) if not seen] == mine


# -- into another generation ----------------------------------------------------------------------


def routes_of(strategy):
    return ("items", "bitmap") if strategy in ("atomic", "lua") else ("items",)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "pipeline", "lock"])
def test_each_item_gets_its_own_answer_after_a_clear_by_others(r, strategy, shards):
    other = BloomFilter("f", 2000, 1e-9, client=r, shards=shards)
    options = {"client": r, "strategy": strategy, "on_lost": "recreate"}
    for route in routes_of(strategy):
        # 16 go without arrays, 300 do not.
        for items in (HUNDREDS[:16], HUNDREDS):
            reader = BloomFilter.open("f", **options)
            writer = BloomFilter.open("f", **options)
            other.clear()
            other.update(THERE)
            seen = reader.exists_many(items, route=route)
            assert seen == [item in THERE for item in items]
            new = writer.add_many([*items, *items], route=route)
            assert new == [item not in THERE for item in items] + [False] * len(items)
            assert all(reader.exists_many(items, route=route))


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
