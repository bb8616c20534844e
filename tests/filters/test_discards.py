"""Discards beside names, expiry, claims and round trips."""

from __future__ import annotations

import pytest
from turns import Turns

from bloomlock import BloomFilter, NearCache
from bloomlock.errors import FilterLostError
from bloomlock.keys import FilterKeys
from bloomlock.sizing import FIRST_BYTE

GROWING = {"capacity": 20, "on_full": "grow"}
WINDOW = {"capacity": 50_000, "window": 86_400}
KINDS = {"plain": {"capacity": 5000}, "growing": GROWING, "window": WINDOW}
"""By kind how a filter is made; one that grows has grown when it has the items of a test."""


@pytest.mark.parametrize("strategy", ["atomic", "lua"])
def test_a_filter_without_discards_pays_nothing(valkey, r, strategy):
    turns = Turns()
    with turns.client(valkey) as client:
        made = BloomFilter("x", 5000, client=client, strategy=strategy)
        made.add("a"), made.exists("a"), made.add_many(["a", "b"]), made.exists_many(["a"])
        r.config_resetstat()
        assert turns.of(lambda: made.exists("a")) == 1
        assert turns.of(lambda: made.add("c")) == 1
        made.add_many(["a", "b", "c"]), made.exists_many(["a", "b"]), made.update(["d"])
        assert made.discard("absent") is False
        assert "cmdstat_smismember" not in r.info("commandstats"), "no set is read"
        assert r.keys("*:discarded") == []


@pytest.mark.parametrize(
    ("strategy", "kind"), [("atomic", "plain"), ("lua", "plain"), ("atomic", "growing")]
)
def test_each_call_stays_one_round_trip(valkey, r, strategy, kind):
    turns = Turns()
    with turns.client(valkey) as client:
        made = BloomFilter("x", client=client, strategy=strategy, **KINDS[kind])
        other = BloomFilter.open("x", client=r)
        other.update(map(str, range(100)))
        # With the sources of the scripts.
        made.discard("1"), made.add("1"), made.exists_many(map(str, range(50)))
        # From here on it has no look at the fill.
        made._state.fill._until_look = 10**9
        assert turns.of(lambda: made.discard("2")) == 1
        assert turns.of(lambda: made.discard("no such item")) == 1
        assert turns.of(lambda: made.exists("2")) == 1
        assert turns.of(lambda: made.exists("3")) == 1
        # Beside BITFIELD its tombstone is removed by another request.
        more = (strategy, kind) == ("atomic", "plain")
        assert turns.of(lambda: made.add("2")) == 1 + more
        assert turns.of(lambda: made.add("new")) == 1
        assert turns.of(lambda: made.exists_many(map(str, range(50)))) == 1
        assert turns.of(lambda: made.add_many(["new 1", "5", "new 2"])) == 1
        other.discard("7")
        assert turns.of(lambda: made.exists("7")) == 1, "discarded by another client"
        assert made.exists("7") is False


def test_items_of_a_full_bitmap_are_discarded_as_well(r):
    made = BloomFilter("x", 10, 0.4, client=r, num_hashes=1)
    r.setrange(FilterKeys("x").bits(0), FIRST_BYTE, b"\xff" * ((made.info().num_bits + 7) // 8))
    items = [str(number) for number in range(200)]
    assert made.discard_many(items) == [True] * 200
    assert made.exists_many(items) == [False] * 200
    assert made.add_many(items) == [True] * 200


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("call", ["exists", "add", "exists_many", "discard", "claim", "run_script"])
def test_a_filter_whose_tombstones_were_evicted_is_lost(r, shards, call):
    made = BloomFilter("x", 5000, client=r, shards=shards)
    made.update(["a", "b", *map(str, range(50))])
    made.discard("a")
    for key in r.keys("*:discarded"):
        r.delete(key)
    calls = {"exists_many": lambda: made.exists_many(["b", "no such item"]),
             "run_script": lambda: made.run_script("return exists(1)", ["b"])}  # fmt: skip
    with pytest.raises(FilterLostError):
        calls.get(call, lambda: getattr(made, call)("b"))()
    with pytest.raises(FilterLostError, match="lost"):
        BloomFilter.open("x", client=r)
    anew = BloomFilter("x", 5000, client=r, shards=shards, on_lost="recreate")
    assert anew.add("a") is True
    assert anew.add("a") is False


def test_who_finds_a_flag_in_one_shard_sets_it_in_all(r):
    """Another object set it in the first one, and died: it proves nothing of the others."""
    made = BloomFilter("x", 5000, client=r, shards=3)
    made.update(map(str, range(50)))
    first = FilterKeys("x").bits(0)
    r.sadd(f"{first}:discarded", r.getrange(first, 0, 7))
    r.setrange(first, 1, b"\2")
    late = BloomFilter.open("x", client=r)
    assert late.has_discards
    assert late.discard("7") is True
    assert {r.getrange(FilterKeys("x").bits(shard), 1, 1) for shard in range(3)} == {b"\2"}
    assert made.exists_many(map(str, range(50))) == [number != 7 for number in range(50)]


@pytest.mark.parametrize(
    "hear",
    [
        lambda near: near.exists("other"),
        lambda near: near.exists_many(["other", "a third"]),
        lambda near: near.claim("other").abandon(),
        lambda near: near.discard("other"),
    ],
)
def test_who_hears_of_a_discard_keeps_no_answer_of_before(r, hear):
    made = BloomFilter("x", 5000, client=r)
    made.update(["a", "b"])
    near = BloomFilter("x", 5000, client=r, near_cache=NearCache(10, max_staleness=3600.0))
    assert near.exists_many(["a", "b"]) == [True, True]
    made.discard("a")
    assert near.exists("a") is True, "kept, as it has asked for nothing since"
    hear(near)
    assert near.exists("a") is False, "the reply has told of the flag"


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_only_runs_scripts_hears_of_discards(r, kind):
    """What it keeps of before, and what Scrapy keeps beside it, ends with that."""
    made, other = (BloomFilter("x", client=r, near_cache=100, **KINDS[kind]) for _ in range(2))
    made.update(["a", "b"])
    assert made.exists("a")
    other.discard("a")
    assert made.run_script("return exists(1) and 1 or 0", ["b"]) == 1
    assert made.has_discards
    assert not made.exists("a")
    made.exists("b")
    assert made.run_script("return add(1) and 1 or 0", ["a"]) == 1
    assert made.run_script("return add(1) and 1 or 0", ["a"]) == 0


@pytest.mark.parametrize("has_heard", [True, False])
def test_an_update_by_bitmap_brings_a_discarded_item_back(r, has_heard):
    made, other = (BloomFilter("pages", 1000, client=r) for _ in range(2))
    made.add("a")
    made.discard("a")
    (made if has_heard else other).update(["a", "b"], route="bitmap")
    assert made.exists_many(["a", "b"]) == [True, True]
