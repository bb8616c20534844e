"""Key names: each filter and each shard has its own, and a name is found again in its key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from bloomlock.keys import FilterKeys, LockKeys, escape, meta_pattern, name_of, unescape
from bloomlock.sizing import MAX_SHARDS

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=50)


def keys_of(name, shards):
    """The keys of a new filter: its descriptor's, then those of its shards."""
    keys = FilterKeys(name)
    return [keys.meta, *(keys.bits(shard) for shard in range(shards))]


@given(names)
def test_names_survive_escaping(name):
    escaped = escape(name)
    assert not set(escaped) & set("{}/")
    assert unescape(escaped) == name
    assert name_of(FilterKeys(name).meta) == name


@given(names, st.integers(1, 255))
def test_no_name_reaches_another_filters_shard(name, shard):
    keys = keys_of(name, shard + 1)
    tag = keys[-1].partition("{")[2].partition("}")[0]
    assert not {FilterKeys(tag).bits(0), FilterKeys(unescape(tag)).bits(0)} & set(keys)
    assert FilterKeys(f"{name}/{shard}").bits(0) not in keys


@settings(max_examples=20)
@given(names, st.integers(2, MAX_SHARDS))
def test_shards_have_keys_and_slots_of_their_own(name, shards):
    meta, first, *others = keys_of(name, shards)
    # The descriptor is written together with the first shard.
    assert key_slot(meta.encode()) == key_slot(first.encode())
    assert len({first, *others}) == shards
    slots = {key_slot(key.encode()) for key in (first, *others)}
    # As many as of numbers drawn at random, at the least.
    assert len(slots) >= 0.8 * min(shards, 4096)


@given(names, names)
def test_locks_of_other_names_share_no_key(one, other):
    ours, theirs = LockKeys.of(one), LockKeys.of(other)
    assert len({key_slot(key.encode()) for key in ours}) == 1
    assert set(ours).isdisjoint(theirs) or one == other
    assert set(ours).isdisjoint(keys_of(one, 3))


def test_keys_of_stored_filters_and_locks_stay_what_they_are():
    assert keys_of("news/{today} 100%", 1) == [
        "bloomlock:{news%2F%7Btoday%7D 100%25}:meta",
        "bloomlock:{news%2F%7Btoday%7D 100%25}:bits",
    ]
    assert LockKeys.of("report").lock == "bloomlock:{report}:lock"
    assert FilterKeys("x", "app:").meta == "app:{x}:meta"


@pytest.mark.parametrize("key", ["bloomlock:{x}:bits", "bloomlock:{%2g%25}:meta", "{}:meta"])
def test_what_is_no_descriptor_has_no_name(key):
    assert name_of(key) is None
    assert name_of(f"bloomlock:{{{'x' * 1025}}}:meta") is None
    assert meta_pattern("my[app]:") == r"my\[app\]:{*}:meta"
