"""What one object promises, for every strategy, server and kind of client."""

from __future__ import annotations

import pytest
import redis
from strategies import BITMAPS, STRATEGIES

from bloomlock import BloomFilter, FilterLostError


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


@pytest.fixture(
    params=[(False, 2), (True, 2), (False, 3), (True, 3)], ids=["", "text", "resp3", "text-resp3"]
)
def any_client(request, server_url):
    decode, protocol = request.param
    with redis.Redis.from_url(server_url, decode_responses=decode, protocol=protocol) as made:
        made.flushall()
        yield made


def test_add_exists_and_batches(any_client, strategy):
    pages = BloomFilter("pages", 5000, 1e-9, client=any_client, strategy=strategy)
    assert pages.add("a") is True
    assert pages.add(b"a") is False
    assert pages.exists("a") is True
    assert pages.exists("b") is False
    assert "a" in pages
    assert "b" not in pages
    items = [f"item {number}" for number in range(1200)]
    assert pages.add_many([*items, "a", *items[:3]]) == [True] * 1200 + [False] * 4
    assert pages.exists_many([*items, "nothing", "a"]) == [True] * 1200 + [False, True]
    pages.update(iter([*items, "one", "two", "one"]))
    assert pages.exists_many([*items, "one", "two"]) == [True] * 1202
    assert pages.add_many([]) == []
    assert pages.exists_many(iter(())) == []
    pages.update([])
    assert len(pages) == pytest.approx(1203, abs=5)
    pages.clear()
    assert pages.exists_many(["a", *items[:5]]) == [False] * 6
    assert pages.add("a") is True


def test_what_one_strategy_wrote_all_others_read(client):
    items = [f"item {number}" for number in range(300)]
    for writer in BITMAPS:
        name = f"by {writer}"
        BloomFilter(name, 1000, client=client, strategy=writer).update(items)
        raw = client.get(f"bloomlock:{{{name}}}:bits")
        for reader in BITMAPS:
            opened = BloomFilter.open(name, client=client, strategy=reader)
            assert all(opened.exists_many(items))
            assert not any(opened.add_many(items))
        assert client.get(f"bloomlock:{{{name}}}:bits") == raw


@pytest.mark.parametrize("strategy", BITMAPS)
@pytest.mark.parametrize("shards", [1, 3])
def test_seeds_and_shards(client, strategy, shards):
    made = BloomFilter("s", 900, client=client, strategy=strategy, seeds=[3, 1, 2], shards=shards)
    assert (made.num_hashes, made.seeds, made.shards) == (3, (3, 1, 2), shards)
    items = [f"item {number}" for number in range(300)]
    assert sum(made.add_many(items)) > 290
    assert all(BloomFilter.open("s", client=client).exists_many(items))
    assert len(client.keys("bloomlock:*:bits")) == shards
    assert made.delete()
    assert client.keys("*bloomlock:*") == []


def test_an_item_takes_the_bits_that_its_vector_says(client):
    made = BloomFilter("x", 1_000_000, 0.01, client=client)
    made.add("a")
    _, offsets = made._state.view.hasher.locate(b"a")
    bitmap = client.get("bloomlock:{x}:bits")
    assert bitmap[:1] == b"B"
    assert int.from_bytes(bitmap[2:8], "big") == made.generation
    assert [o for o in sorted(offsets) if bitmap[o // 8] >> (7 - o % 8) & 1] == sorted(offsets)
    assert client.bitcount("bloomlock:{x}:bits", 8, -1) == len(set(offsets))


def test_info_and_repr(client):
    made = BloomFilter("pages", 10_000, 0.001, client=client)
    made.update(str(number) for number in range(10_000))
    info = made.info()
    assert info.estimated_count == pytest.approx(10_000, rel=0.02)
    assert info.current_error_rate == pytest.approx(0.001, rel=0.2)
    assert info.fill_ratio == info.bits_set / info.num_bits
    assert info.memory_bytes >= info.num_bits / 8
    assert info.memory_bytes < info.num_bits / 8 + 5000
    assert (info.name, info.capacity, info.error_rate) == ("pages", 10_000, 0.001)
    assert info.generation == made.generation != 0
    assert repr(made) == (
        f"<BloomFilter 'pages': 10000 items at 0.001, {made.num_bits} bits, "
        f"{made.num_hashes} hashes, 1 shard, atomic>"
    )


def test_copy(client, strategy):
    source = BloomFilter("one", 2000, client=client, strategy=strategy, shards=2)
    source.update(str(number) for number in range(1000))
    copied = source.copy("two")
    assert copied.name == "two"
    assert copied.strategy == strategy
    assert copied.generation != source.generation
    assert all(copied.exists_many(str(number) for number in range(1000)))
    assert copied.add("only here")
    assert not source.exists("only here")
    with pytest.raises(ValueError, match="'two' is taken"):
        source.copy("two")


def test_delete(client, strategy):
    made = BloomFilter("x", 1000, client=client, strategy=strategy)
    other = BloomFilter("x", 1000, client=client, strategy=strategy)
    assert made.delete() is True
    assert made.delete() is False
    assert client.keys("*") == []
    with pytest.raises(FilterLostError, match="missing"):
        other.exists("a")


def test_a_filter_over_a_url_closes_what_it_opened(server_url):
    with BloomFilter("over a url", 1000, client=server_url) as made:
        assert made.add("a")
        made.delete()


def test_names_of_any_kind(client):
    names = ["a", "a/1", "{a}", "a}{b", "ü", " ", "%7B", "a\n", "*"]
    for name in names:
        assert BloomFilter(name, 100, client=client, shards=2).add(name)
    for name in names:
        opened = BloomFilter.open(name, client=client)
        assert [other for other in names if opened.exists(other)] == [name]


def test_prefix(client):
    BloomFilter("x", 100, client=client, prefix="app1:").add("a")
    assert not BloomFilter("x", 100, client=client, prefix="app2:").exists("a")
    assert BloomFilter.open("x", client=client, prefix="app1:").exists("a")
