"""Batches that are or become bad: the error names the place, and what was done is told."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
import redis
import redis.asyncio
from strategies import STRATEGIES, with_hashes

from bloomlock import (
    AsyncBloomFilter,
    BatchError,
    BloomFilter,
    ConfigurationError,
    MemoryBloomFilter,
)

BATCHES = ("add_many", "exists_many", "update")


class Awaited:
    """An AsyncBloomFilter whose methods are called as those of a BloomFilter."""

    def __init__(self, *arguments, url, **options):
        self._runner = asyncio.Runner()
        client = redis.asyncio.Redis.from_url(url)
        self._made = AsyncBloomFilter(*arguments, client=client, **options)

    def __getattr__(self, name):
        method = getattr(self._made, name)
        if not callable(method):
            return method

        def call(*arguments, **options):
            async def run():
                return await method(*arguments, **options)

            return self._runner.run(run())

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._runner.run(self._made._runtime.client.aclose())
        self._runner.close()


@pytest.fixture(params=["threads", "asyncio"])
def make(request, valkey):
    """Makes filters of either face."""
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
    opened = []

    def make_one(*arguments, **options):
        kind = BloomFilter if request.param == "threads" else Awaited
        options |= {"client": valkey} if request.param == "threads" else {"url": valkey}
        made = kind(*arguments, **options)
        opened.append(made)
        made.add("there")
        return made

    yield make_one
    for one in opened:
        one.__exit__(None, None, None)


@pytest.fixture(params=STRATEGIES)
def made(request, make):
    return make("x", 20_000, 1e-9, strategy=request.param, **with_hashes(request.param, 24))


def bits(made):
    return made.info().bits_set


class NoMoreError(Exception):
    """What a generator raises half-way."""


def broken(items, after):
    yield from items[:after]
    raise NoMoreError


def test_batches_of_none_of_one_and_of_what_is_no_iterable(made):
    before = bits(made)
    for batch in BATCHES:
        call = getattr(made, batch)
        for empty in ([], (), iter([]), {}, (item for item in ())):
            assert call(empty) == (None if batch == "update" else [])
        for one in ("text", b"bytes", "", b""):
            with pytest.raises(TypeError, match="items must be an iterable of str or bytes, not"):
                call(one)
        for none in (5, None, object()):
            with pytest.raises(TypeError, match=type(none).__name__):
                call(none)
    assert bits(made) == before


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (7, TypeError, "int.*7"),
        (None, TypeError, "NoneType"),
        (bytearray(b"a"), TypeError, "bytearray"),
        (["a"], TypeError, "list"),
        ("a\udc80", ConfigurationError, "surrogate"),
    ],
    ids=["int", "None", "bytearray", "list", "surrogate"],
)
def test_an_item_of_another_type_is_named_by_its_index(make, batch, wrong, error, says):
    made = make("x", 2000)
    before = bits(made)
    items = ["a", b"b", "there", wrong, "c", 8]
    with pytest.raises(error, match=says) as caught:
        getattr(made, batch)(items)
    assert "items[3]" in str(caught.value)
    assert "\n" not in str(caught.value)
    # All of it is one chunk, and none of a chunk is sent that has such an item.
    assert bits(made) == before
    assert getattr(caught.value, "results", []) == []
    assert getattr(caught.value, "added", 0) == 0


@pytest.mark.parametrize(("bad", "route"), [(NoMoreError, "auto"), (TypeError, "items")])
def test_a_batch_that_goes_bad_half_way_tells_what_was_done(made, bad, route):
    # More than one chunk, of which some strategies take larger ones.
    after = 11_000 if made.strategy in {"atomic", "lua", "native"} else 800
    items = [str(number) for number in range(after + 100)]
    if bad is NoMoreError:
        source = broken(items, after)
    else:
        source = iter([*items[:after], 7, *items[after:]])
    with pytest.raises(bad) as caught:
        made.add_many(source, route=route)
    if bad is NoMoreError:
        # The caller's own passes through as it is, and nothing is said about the items before.
        assert not vars(caught.value)
        known = made.exists_many(items).count(True)
        assert known < after
    else:
        assert isinstance(caught.value, BatchError)
        known = len(caught.value.results)
        assert 0 < known <= after
        assert caught.value.results == [True] * known
        assert f"items[{after}]" in str(caught.value)
        assert type(caught.value.__cause__) is TypeError
    # Exactly these were added, and the filter goes on.
    assert made.exists_many(items) == [True] * known + [False] * (len(items) - known)
    assert made.add_many(items[known:]) == [True] * (len(items) - known)

    with pytest.raises(NoMoreError) as caught:
        made.exists_many(broken(items, after), route=route)
    assert not vars(caught.value)

    more = [f"more {item}" for item in items]
    with pytest.raises(NoMoreError) as caught:
        made.update(broken(more, after), route=route)
    assert not vars(caught.value)
    assert made.exists_many(more) == [True] * after + [False] * (len(more) - after)

    with pytest.raises(TypeError) as caught:
        made.update(iter([*more[:after], 7]), route=route)
    assert isinstance(caught.value, BatchError)
    assert 0 < caught.value.added <= after
    assert caught.value.results == []


def test_no_more_of_an_endless_batch_is_read_than_needed(make):
    made = make("x", 20_000)
    numbers = count()
    with pytest.raises(TypeError, match=r"items\[3000\]"):
        made.add_many(str(n) if n != 3000 else n for n in numbers)
    assert next(numbers) <= 2**17


def test_an_item_of_a_million_characters(made):
    long = "x" * 1_000_000
    other = long + "y"
    assert made.add(long) is True
    assert made.add(long.encode()) is False
    assert made.exists(long)
    assert not made.exists(other)
    assert made.add_many(["a", other, long, other, "b"]) == [True, True, False, False, True]
    assert made.exists_many([long, long + "z", other]) == [True, False, True]
    made.update([long + "z"])
    assert made.exists(long + "z")


def test_routes_that_are_none(made):
    before = bits(made)
    for batch in BATCHES:
        for route in ("nonsense", "", None, 1, ["items"]):
            with pytest.raises(ConfigurationError, match="route must be 'auto'") as caught:
                getattr(made, batch)(["a"], route=route)
            assert repr(route) in str(caught.value)
    assert bits(made) == before


def test_items_of_both_types_are_one(made):
    items = ["ä", "ä".encode(), b"\xff", "", b"", "a\0", "a"]
    assert made.add_many(items) == [True, False, True, True, False, True, True]
    assert all(made.exists_many(items))


def test_the_filter_in_the_process_takes_the_same_for_bad():
    made = MemoryBloomFilter(1000)
    for batch in BATCHES:
        with pytest.raises(TypeError, match="items must be an iterable"):
            getattr(made, batch)("text")
        with pytest.raises(TypeError, match=r"items\[1\]"):
            getattr(made, batch)(["a", 7])
        assert not getattr(made, batch)([])
