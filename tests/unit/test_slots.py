"""The shards of a filter lie evenly over the slots of a cluster, and every client knows where."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from bloomlock.keys import NUMBERED_SHARDS, PLACES, FilterKeys, slot_of, tag_in_slot
from bloomlock.parameters import Wanted
from bloomlock.sizing import MAX_SHARDS

SLOTS = 16384
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


def slots_of(keys, shards):
    return [key_slot(keys.bits(shard).encode()) for shard in range(shards)]


@given(names, st.integers(0, SLOTS - 1))
def test_a_tag_can_be_brought_into_any_slot(name, slot):
    tag = FilterKeys(name)._tag
    assert slot_of(tag_in_slot(tag, slot)) == slot
    assert key_slot(f"a:{{{tag_in_slot(tag, slot)}}}:bits".encode()) == slot


@given(names, st.integers(1, MAX_SHARDS))
def test_shards_are_evenly_spaced_from_the_first(name, shards):
    keys = FilterKeys(name).spread(shards)
    found = slots_of(keys, shards)
    # The descriptor is written together with the first shard.
    assert found[0] == key_slot(keys.meta.encode())
    assert len(set(found)) == len({keys.bits(shard) for shard in range(shards)}) == shards
    gaps = [(after - before) % SLOTS or SLOTS for before, after in pairwise([*found, found[0]])]
    assert max(gaps) - min(gaps) <= SLOTS // (1024 if shards <= 1024 else PLACES)
    for masters in (2, 3, 6):
        counts = [0] * masters
        for slot in found:
            counts[slot * masters // SLOTS] += 1
        assert max(counts) - min(counts) <= 2
    # Old filters have other keys, so one of either kind may be made where the other was.
    old = {FilterKeys(name).bits(shard) for shard in range(1, NUMBERED_SHARDS)}
    assert not old & {keys.bits(shard) for shard in range(1, shards)}


@given(names, st.integers(2, MAX_SHARDS))
@settings(max_examples=20)
def test_all_shards_a_filter_may_have_had_are_known(name, shards):
    """What is deleted where the number of shards can no longer be read."""
    keys = FilterKeys(name)
    known = {keys.spread(PLACES).bits(place) for place in range(PLACES)}
    assert {keys.spread(shards).bits(shard) for shard in range(shards)} <= known


@pytest.mark.parametrize(("stored", "spreads"), [(1, False), (2, False), (3, True)])
def test_the_format_says_where_shards_lie(stored, spreads):
    keys = FilterKeys("pages")
    described = replace(Wanted.check(1000, 0.01, shards=6).describe(), format=stored)
    other = keys.spread(6) if spreads else keys
    assert described.place(keys).bits(5) == other.bits(5)


def test_the_keys_of_a_stored_filter_stay_what_they_are():
    keys = FilterKeys("pages").spread(6)
    assert [keys.bits(shard) for shard in (0, 1, 5)] == [
        "bloomlock:{pages}:bits",
        "bloomlock:{pages/022352}:bits",
        "bloomlock:{pages/262410}:bits",
    ]
    assert slots_of(keys, 6) == [5680, 8400, 11136, 13872, 208, 2944]
