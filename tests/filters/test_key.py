"""Filters with a key: what a stranger cannot make, who is refused, and what is never shown."""

from __future__ import annotations

import logging

import pytest

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import ConfigurationError, FilterMismatchError

SECRET = "correct horse battery staple"  # noqa: S105 - of these tests only
OTHER = b"\x00\xff another secret \x00"
URL = "https://shop.example/the-page-to-hide"
CRAFTED = [
    bytes.fromhex("06667574d7031b1310b243839e4aa3d2"),
    b"https://evil.example/?session=0x" + bytes.fromhex("f0f529265cb002e5829ba389ef1c5be5"),
]
"""Items with the digest of URL: each step of Murmur3 can be undone, and so the last 16 bytes of an
item follow from the digest that it is to have."""
SHAPES = [{}, {"shards": 3}]


# What a stranger can do without a key, and cannot with one.


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("crafted", CRAFTED)
def test_an_item_made_from_inverted_murmur3_hides_a_page_only_without_a_key(r, shape, crafted):
    for key, hidden in ((None, True), (SECRET, False), (True, False)):
        shared = BloomFilter(f"x {key}", 1000, client=r, key=key, **shape)
        memory = MemoryBloomFilter(1000, key=key, **shape)
        for made in (shared, memory):
            assert made.add(crafted) is True
            assert (URL in made) is hidden
            assert made.exists_many([URL]) == [hidden]
            assert made.add(URL) is not hidden


@pytest.mark.parametrize("stored", [None, True, SECRET])
@pytest.mark.parametrize("given", [None, True, SECRET, OTHER])
def test_another_key_is_refused_and_changes_nothing(r, tmp_path, stored, given):
    BloomFilter("x", 1000, client=r, key=stored).add("a")
    before = {key: r.dump(key) for key in r.keys("*")}
    MemoryBloomFilter(1000, key=stored).save(tmp_path / "x")
    opens = given == stored or (stored is True and given is None)
    for allowed, act in (
        (given == stored, lambda: BloomFilter("x", 1000, client=r, key=given, on_lost="recreate")),
        (opens, lambda: BloomFilter.open("x", client=r, key=given, on_lost="recreate")),
        (opens, lambda: MemoryBloomFilter.load(tmp_path / "x", key=given)),
    ):
        if allowed:
            act()
            continue
        with pytest.raises(FilterMismatchError, match="key: stored"):
            act()
    assert {key: r.dump(key) for key in r.keys("*")} == before


def test_a_filter_that_was_replaced_by_one_with_another_key_is_not_cleared(r):
    made = BloomFilter("x", 1000, client=r, key=SECRET)
    made.delete()
    other = BloomFilter("x", 1000, client=r, key=OTHER)
    other.add("a")
    with pytest.raises(FilterMismatchError, match="key: stored"):
        made.clear()
    assert "a" in other


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("route", ["items", "bitmap"])
def test_items_are_hashed_anew_when_the_filter_is_replaced_by_one_with_another_random_key(
    r, shape, route
):
    made = BloomFilter("x", 1000, client=r, key=True, on_lost="recreate", **shape)
    made.add_many(["before"])
    made.delete()
    other = BloomFilter("x", 1000, client=r, key=True, **shape)
    items = [str(number) for number in range(300)]
    assert made.add_many(items, route=route) == [True] * 300
    assert all(other.exists_many(items))
    assert made.exists_many(items) == [True] * 300


def test_a_secret_is_shown_and_stored_nowhere(r, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    made = BloomFilter("x", 20, client=r, key=SECRET, near_cache=10)
    made.update(map(str, range(40)))
    memory = made.to_memory()
    memory.save(tmp_path / "x")
    shown = [repr(made), repr(made.info()), repr(memory), repr(made._state.descriptor)]
    shown += [repr(made._state.wanted), repr(made._state.view)]
    for attempt in (
        lambda: BloomFilter.open("x", client=r, key=OTHER),
        lambda: BloomFilter.open("x", client=r),
        lambda: BloomFilter("x", 1000, client=r, key=SECRET + "!"),
        lambda: made.update(MemoryBloomFilter(20, key=OTHER)),
    ):
        with pytest.raises((FilterMismatchError, ConfigurationError)) as caught:
            attempt()
        shown.append(str(caught.value))
    shown.append(caplog.text)
    secret, other = SECRET.encode(), OTHER
    for form in (SECRET, secret.hex(), repr(OTHER)[2:-1], other.hex()):
        assert not any(form in text for text in shown)
    stored = b"".join(r.dump(key) for key in r.keys("*"))
    stored += (tmp_path / "x").read_bytes()
    assert r.hget("bloomlock:{x}:meta", "key").startswith(b"secret:")
    assert secret not in stored
    assert secret.hex().encode() not in stored
