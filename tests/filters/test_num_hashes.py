"""The number of hash functions: given, chosen by a word, or taken as it is stored."""

from __future__ import annotations

import asyncio

import pytest
import redis

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    FilterMismatchError,
    MemoryBloomFilter,
)

BAD = [
    ({"num_hashes": 0}, "num_hashes must be a whole number from 1 to 64 or None, not 0"),
    ({"num_hashes": 65}, "num_hashes must be a whole number from 1 to 64 or None, not 65"),
    ({"num_hashes": -1}, "num_hashes must be .* not -1"),
    ({"num_hashes": True}, "num_hashes must be .* not True"),
    ({"num_hashes": 5.0}, r"num_hashes must be .* not 5\.0"),
    ({"num_hashes": "5"}, "num_hashes must be .* not '5'"),
    ({"num_hashes": 3, "seeds": [1, 2, 3]}, "num_hashes must be None with seeds"),
    ({"num_hashes": True, "seeds": [1]}, "num_hashes must be None with seeds"),
    ({"optimize": "size"}, "optimize must be 'memory', 'balanced', 'speed' or None, not 'size'"),
    ({"optimize": ""}, "optimize must be .* not ''"),
    ({"optimize": 3}, "optimize must be .* not 3"),
    ({"optimize": "speed", "num_hashes": 3}, "optimize must be None with num_hashes"),
    ({"optimize": "speed", "seeds": [1]}, "optimize must be None with seeds"),
    ({"num_hashes": 1, "error_rate": 1e-9}, "num_hashes must be more than 1 at error_rate 1e-09"),
    (
        {"num_hashes": 2, "error_rate": 1e-9, "layout": "blocked"},
        "num_hashes must be more than 2 at error_rate 1e-09",
    ),
    ({"num_hashes": 4, "error_rate": 1e-9, "shards": 1, "capacity": 10**8}, "needs about 2"),
]


@pytest.fixture
def r(valkey):
    client = redis.Redis.from_url(valkey)
    client.flushall()
    return client


@pytest.mark.parametrize(("options", "says"), BAD, ids=lambda value: str(value)[:50])
def test_what_is_not_usable_is_refused_with_one_sentence(r, options, says):
    given = {"capacity": 100_000, **options}

    def awaited():
        async def main():
            await AsyncBloomFilter("x", client="redis://127.0.0.1:1", **given)

        asyncio.run(main())

    for make in (
        lambda: BloomFilter("x", client=r, **given),
        lambda: MemoryBloomFilter(**given),
        awaited,
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            make()
        assert str(caught.value).count(". ") == 0
        assert len(str(caught.value)) < 300
    assert r.keys() == []


@pytest.mark.parametrize("layout", ["classic", "blocked"])
@pytest.mark.parametrize("asked", [{"num_hashes": 11}, {"optimize": "speed"}, {"optimize": None}])
def test_every_client_takes_what_is_stored_unless_it_asks(r, layout, asked):
    made = BloomFilter("x", 5000, client=r, layout=layout, **asked)
    made.update(str(number) for number in range(100))
    for other in (
        BloomFilter("x", 5000, client=r, layout=layout),
        BloomFilter("x", 5000, client=r, layout=layout, num_hashes=made.num_hashes),
        BloomFilter.open("x", client=r),
    ):
        assert (other.num_hashes, other.num_bits) == (made.num_hashes, made.num_bits)
        assert other.exists_many(str(number) for number in range(100)) == [True] * 100
        assert not other.add("99")
    same = MemoryBloomFilter(5000, layout=layout, **asked)
    assert (same.num_hashes, same.num_bits) == (made.num_hashes, made.num_bits)
    with pytest.raises(
        FilterMismatchError, match=f"num_hashes: stored {made.num_hashes}, asked 12"
    ):
        BloomFilter("x", 5000, client=r, layout=layout, num_hashes=12)
    with pytest.raises(
        FilterMismatchError,
        match=f"optimize: stored {made.num_hashes} hash functions, asked .* by 'memory'",
    ):
        BloomFilter("x", 5000, client=r, layout=layout, optimize="memory")
    assert BloomFilter("x", 5000, client=r, layout=layout).exists("1")


def test_the_words_order_memory_and_hash_functions():
    for layout in ("classic", "blocked"):
        memory, balanced, speed, usual = (
            MemoryBloomFilter(100_000, layout=layout, optimize=word)
            for word in ("memory", "balanced", "speed", None)
        )
        assert memory.num_hashes > balanced.num_hashes > speed.num_hashes
        assert memory.num_bits < balanced.num_bits < speed.num_bits
        assert usual.num_hashes == balanced.num_hashes


def test_what_fits_only_with_the_least_memory_gets_it(r):
    # A filter of 4.1e9 bits in one shard was made before there was a choice.
    made = AsyncBloomFilter("x", 140_000_000, client=r, shards=1)
    assert made.num_hashes == 16
    with pytest.raises(ConfigurationError, match="1 shards hold"):
        AsyncBloomFilter("x", 140_000_000, client=r, shards=1, optimize="balanced")


def test_an_opened_filter_that_is_lost_is_made_with_the_same_number(r):
    BloomFilter("x", 5000, client=r, num_hashes=3)
    opened = BloomFilter.open("x", client=r, on_lost="recreate")
    r.flushall()
    assert opened.add("a")
    assert BloomFilter.open("x", client=r).num_hashes == 3
