"""The packed script calls of strategy "lua"."""

from __future__ import annotations

import pytest

from bloomlock import BloomFilter
from bloomlock.errors import FilterLostError

BITS = "bloomlock:{x}:bits"


def numbered(start: int, end: int) -> list[str]:
    return [f"item {number}" for number in range(start, end)]


def test_the_script_writes_nothing_to_another_generation(r):
    made = BloomFilter("x", 1000, client=r, strategy="lua")
    BloomFilter.open("x", client=r).clear()
    before = r.get(BITS)
    with pytest.raises(FilterLostError):
        made.add("a")
    made.reattach()
    r.delete(BITS)
    with pytest.raises(FilterLostError):
        made.add_many(numbered(0, 2000), route="items")
    assert not r.exists(BITS)
    r.set(BITS, before)
    made.reattach()
    assert made.add("a") is True
    assert r.get(BITS) != before


def test_a_server_that_forgot_the_script_is_told_it_again(r):
    made = BloomFilter("x", 3000, client=r, strategy="lua")
    for count in (1, 100, 1000):
        r.script_flush()
        batch = numbered(count, 2 * count)
        assert made.add_many(batch, route="items") == [True] * count
        r.script_flush()
        assert made.exists_many(batch, route="items") == [True] * count
    r.script_flush()
    assert made.add("single") is True
