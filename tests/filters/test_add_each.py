"""add_each: every answer is yielded before whatever ends the stream."""

from __future__ import annotations

import asyncio
from itertools import count, islice

import pytest

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    MemoryBloomFilter,
)
from bloomlock.strategies import STRATEGIES


class StreamEndedError(Exception):
    """What a caller's own iterable may raise; its attributes are the caller's."""

    @property
    def results(self):
        return "read only"


def failing_after(items):
    yield from items
    raise StreamEndedError


def make(kind, url, **options):
    if kind == "memory":
        return MemoryBloomFilter(10_000, 1e-6, **options)
    made = BloomFilter("each", 10_000, 1e-6, client=url, **options)
    made.clear()
    return made


@pytest.fixture(params=["server", "memory"])
def kind(request):
    return request.param


def collect(stream, pairs):
    """Take pairs until the stream ends or raises; they are kept either way."""
    for pair in stream:
        pairs.append(pair)


def test_answers_are_those_of_a_set(kind, valkey):
    items = [f"i{n % 700}" for n in range(2000)]
    known = set()
    expected = [(item, item not in known and not known.add(item)) for item in items]
    assert list(make(kind, valkey).add_each(items, batch_size=64)) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_by_every_strategy(valkey, strategy):
    filter = make("server", valkey, strategy=strategy)  # noqa: A001 - it is one
    assert list(filter.add_each(["a", b"b", "a"])) == [("a", True), (b"b", True), ("a", False)]


def test_what_the_iterable_raises_comes_after_all_answers(kind, valkey):
    filter = make(kind, valkey)  # noqa: A001 - it is one
    pairs = []
    with pytest.raises(StreamEndedError) as caught:
        collect(filter.add_each(failing_after(f"i{n}" for n in range(1500))), pairs)
    assert pairs == [(f"i{n}", True) for n in range(1500)]
    assert not getattr(caught.value, "__notes__", None)
    assert filter.exists_many(f"i{n}" for n in range(1500)) == [True] * 1500


def test_an_endless_stream_is_read_a_batch_at_a_time(kind, valkey):
    read = []

    def numbers():
        for n in count():
            read.append(n)
            yield f"i{n}"

    stream = make(kind, valkey).add_each(numbers(), batch_size=10)
    assert read == []
    assert [new for _, new in islice(stream, 25)] == [True] * 25
    assert len(read) == 30


def test_a_full_filter_yields_what_it_answered(kind, valkey):
    filter = make(kind, valkey, on_full="raise")  # noqa: A001 - it is one
    pairs = []
    with pytest.raises(CapacityError):
        collect(filter.add_each(f"i{n}" for n in count()), pairs)
    assert [item for item, _ in pairs] == [f"i{n}" for n in range(len(pairs))]
    assert len(pairs) >= 10_000
    added = [item for item, new in pairs if new]
    assert filter.exists_many(added) == [True] * len(added)

    pairs = []
    with pytest.raises(CapacityError) as caught:
        collect(filter.add_each(["i1", "i0", "never added"]), pairs)
    assert pairs == [("i1", False), ("i0", False)]
    assert True not in caught.value.results
    assert False not in caught.value.results


@pytest.mark.parametrize("bad", [0, -1, 1.5, "10", True])
def test_bad_batch_sizes(kind, valkey, bad):
    with pytest.raises(ConfigurationError, match="batch_size must be a whole number"):
        make(kind, valkey).add_each(["a"], batch_size=bad)


def test_one_item_is_no_iterable_of_items(kind, valkey):
    with pytest.raises(TypeError, match="items must be an iterable"):
        make(kind, valkey).add_each("a")


def test_in_asyncio(valkey):
    async def main():
        pairs = []
        async with AsyncBloomFilter("each", 10_000, client=valkey) as filter:  # noqa: A001
            await filter.clear()
            with pytest.raises(StreamEndedError):
                async for pair in filter.add_each(failing_after(["a", "b", "a"]), batch_size=2):
                    pairs.append(pair)  # noqa: PERF401 - what came before an error is kept
        return pairs

    assert asyncio.run(main()) == [("a", True), ("b", True), ("a", False)]
