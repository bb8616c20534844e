"""What is stored under a name and is damaged, half made or another version's: refused whole."""

from __future__ import annotations

import pytest

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter, list_filters
from bloomlock.errors import FilterLostError, FilterMismatchError, OutcomeUnknownError
from bloomlock.keys import FilterKeys
from bloomlock.spec import RequestedSpec, encode

BITS = "bloomlock:{x}:bits"
META = "bloomlock:{x}:meta"


def shard_key(shard, shards=3):
    return FilterKeys("x").bits(shard)


def test_a_shard_with_a_flag_is_not_emptied_by_a_creation(r, restricted):
    BloomFilter("x", 1000, client=r, shards=3).update(map(str, range(100)))
    r.setbit(shard_key(1), 9, 1)
    r.delete(shard_key(0))
    before = contents(r)
    for allowed in (r, restricted("-@scripting")):
        with pytest.raises(FilterMismatchError, match="newer version"):
            BloomFilter.open("x", client=allowed, on_lost="recreate")
        assert contents(r) == before


def contents(client):
    return {key: client.dump(key) for key in client.scan_iter()}


TAMPERED = {
    "num_hashes": lambda client: client.hset(META, "num_hashes", 5),
    "shard_bits": lambda client: client.hset(META, "shard_bits", 35_000),
    "shards": lambda client: client.hset(META, "shards", 2),
    "capacity": lambda client: client.hset(META, mapping=encode(other_descriptor(client))),
    "state": lambda client: client.hset(META, "state", "growing"),
    "cut": lambda client: client.set(BITS, client.get(BITS)[:-1]),
    "a cut shard": lambda client: client.set(shard_key(2), client.get(shard_key(2))[:-1]),
    "a list": lambda client: (client.delete(shard_key(2)), client.rpush(shard_key(2), "a")),
}


def other_descriptor(client):
    """A descriptor that does not contradict itself, of the same generation."""
    generation = int(client.hget(META, "generation"))
    return RequestedSpec.check(11000, 0.01, shards=3).describe().with_generation(generation)


@pytest.mark.parametrize("tampered", TAMPERED)
def test_tampering_is_refused_and_can_be_deleted(r, tampered):
    BloomFilter("other", 10, client=r).add("a")
    made = BloomFilter("x", 10_000, 0.01, client=r, shards=3)
    made.update(map(str, range(100)))
    TAMPERED[tampered](r)
    before = contents(r)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match="filter 'x'"):
            BloomFilter("x", 10_000, 0.01, client=r, shards=3, on_lost=on_lost)
        with pytest.raises(FilterMismatchError, match="filter 'x'"):
            BloomFilter.open("x", client=r, on_lost=on_lost)
        assert contents(r) == before
    assert list_filters(client=r) == ["other", "x"]
    assert delete_filter("x", client=r) is True
    assert set(r.scan_iter()) == {b"bloomlock:{other}:bits", b"bloomlock:{other}:meta"}


def test_a_filter_that_has_lost_a_slice_is_refused(r):
    made = BloomFilter("x", 20, client=r, on_full="grow")
    made.update(map(str, range(500)))
    assert made.info().slices > 2
    r.set(BITS, r.get(BITS)[:-1000])
    for act in (made.count, lambda: BloomFilter.open("x", client=r)):
        with pytest.raises(FilterMismatchError, match="too few for . slices; delete the filter"):
            act()
    assert made.delete()


@pytest.mark.parametrize(
    "damage", [lambda r: r.hset(META, "shards", "many"), lambda r: r.delete(META)]
)
def test_a_filter_without_a_sound_descriptor_is_deleted_with_all_its_shards(r, damage):
    BloomFilter("x", 1000, client=r, shards=300)
    damage(r)
    assert delete_filter("x", client=r)
    assert r.keys() == []


def test_an_object_deletes_its_shards_though_the_first_one_is_gone_too(r):
    made = BloomFilter("x", 1000, client=r, shards=3)
    r.delete(META, shard_key(0))
    made.delete()
    assert r.keys() == []


@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
@pytest.mark.parametrize("shards", [1, 3])
def test_an_object_of_a_larger_filter_takes_nothing_from_a_smaller_one(r, on_lost, shards):
    """Its update carries the old places, and is answered after they were written."""
    old = BloomFilter("x", 100_000, client=r, on_lost=on_lost, shards=shards)
    old.add("a")
    old.delete()
    made = BloomFilter("x", 1000, client=r, shards=shards)
    made.add("b")
    with pytest.raises((FilterLostError, FilterMismatchError)):
        old.update(str(one) for one in range(100))
    again = BloomFilter.open("x", client=r)
    assert "b" in again
    assert again.add("c")


def test_a_filter_that_another_one_replaced_is_written_to_once(r):
    """With "recreate" each add would set bits in it at the places of the filter that is gone."""
    made = BloomFilter("x", 100_000, client=r, on_lost="recreate")
    BloomFilter("x", 100_000, client=r).delete()
    other = BloomFilter("x", 1000, client=r)
    with pytest.raises(OutcomeUnknownError):
        made.add("a")
    bits = r.bitcount(BITS)
    for call in (made.add, made.exists, lambda item: made.add_many([item, "c"])):
        with pytest.raises(FilterMismatchError, match="capacity: stored 1000, asked 100000"):
            call("b")
    assert r.bitcount(BITS) == bits
    other.delete()
    assert made.add("a")
