"""Batches whose bits are merged as a whole: exact, in the right generation, nothing left behind."""

from __future__ import annotations

import numpy as np
import pytest
from proxy import Proxy

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import FilterLostError, OutcomeUnknownError
from bloomlock.strategies import bitmap
from bloomlock.strategies.bits import AtomicStrategy

SHAPES = {
    "classic": {},
    "seeds": {"seeds": range(12)},
    "shards": {"shards": 3},
    "key": {"key": b"a key of 16 bytes"},
}


@pytest.fixture
def small_parts(monkeypatch):
    """Shards of this size are merged in parts, of which most hold some of a thousand items."""
    monkeypatch.setattr(bitmap, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(bitmap, "PART_BYTES", 640)


def words(start, stop):
    return [f"https://example.org/{number}" for number in range(start, stop)]


def calls(client, command):
    found = client.info("commandstats").get(f"cmdstat_{command}", {})
    return found.get("calls", 0) + found.get("rejected_calls", 0)


def test_the_memory_of_a_batch_has_nothing_of_it_for_the_next_filter(r):
    one, two = (BloomFilter(name, 5000, 1e-4, client=r) for name in ("one", "two"))
    one.add_many(words(0, 1000), route="bitmap")
    kept = bitmap._KEPT[0][0]
    assert two.add_many(words(1000, 2000), route="bitmap") == [True] * 1000
    assert bitmap._KEPT[0][0] is kept
    assert two.exists_many(words(0, 1000), route="items").count(True) < 10
    assert one.exists_many(words(0, 2000), route="bitmap")[:1000] == [True] * 1000


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bitmap_says_and_sets_what_items_do(r, shape):
    one = BloomFilter("one", 5000, 1e-4, client=r, **SHAPES[shape])
    many = BloomFilter("many", 5000, 1e-4, client=r, **SHAPES[shape])
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
    assert not r.keys("*merge*")


@pytest.mark.parametrize("shape", ["classic", "shards"])
def test_a_large_classic_filter_is_updated_in_parts(r, small_parts, shape):
    made = BloomFilter("x", 5000, client=r, **SHAPES[shape])
    made.update(words(0, 2000), route="bitmap")
    memory = MemoryBloomFilter(5000, **SHAPES[shape])
    memory.update(words(0, 2000))
    for mine, theirs in zip(made.to_memory().images(), memory.images(), strict=True):
        assert np.array_equal(mine, theirs)
    # With answers all bits of an item have to be merged at one instant.
    before = calls(r, "bitop")
    assert made.add_many(words(0, 3000)) == [False] * 2000 + [True] * 1000
    assert calls(r, "bitop") == before
    assert made.info().route == "items"


@pytest.mark.parametrize("strategy", ["atomic", "lua"])
def test_nothing_is_written_to_another_generation(r, strategy):
    made = BloomFilter("x", 5000, client=r, strategy=strategy)
    other = BloomFilter("x", 5000, client=r)
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
    assert not r.keys("*")


@pytest.mark.parametrize("denied", ["-eval -evalsha", "-bitop", "-multi", "-unlink -del"])
def test_where_it_is_forbidden_items_are_sent(r, restricted, denied, monkeypatch):
    monkeypatch.setattr(AtomicStrategy, "bits_per_exchange", 1000)
    BloomFilter("x", 5000, client=r)
    made = BloomFilter("x", 5000, client=restricted(*denied.split()))
    batch = words(0, 1000)
    assert made.add_many([*batch, *batch], route="bitmap") == [True] * 1000 + [False] * 1000
    tried = calls(r, "multi")
    assert made.add_many(words(500, 1500)) == [False] * 500 + [True] * 500
    if denied in ("-eval -evalsha", "-multi"):  # the others are refused within the script
        assert calls(r, "multi") == tried
    made.update(words(2000, 3000), route="bitmap")
    assert made.exists_many(words(1000, 3000), route="bitmap") == (
        [True] * 500 + [False] * 500 + [True] * 1000
    )
    # What could not be deleted goes by itself.
    assert all(0 < r.ttl(key) <= 60 for key in r.keys("*merge*"))


@pytest.mark.parametrize("at", range(7))
def test_a_reply_that_is_cut_anywhere_is_a_lost_reply(valkey, r, at):
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
