"""Strategy "native": the server's own filter (BF.*), and the guarantees that hold around it."""

from __future__ import annotations

import asyncio

import pytest
import redis

from bloomlock import AsyncBloomFilter, BloomFilter
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.filters import placing
from bloomlock.keys import FilterKeys, native_key

META, BITS = b"bloomlock:{x}:meta", b"bloomlock:{x}:bits"


@pytest.fixture(params=["native"])
def how(request):
    """The strategy, so that the servers have BF.*."""
    return request.param


@pytest.fixture
def make(r, how):
    def make_one(name="x", capacity=1000, error_rate=1e-6, **options):
        return BloomFilter(name, capacity, error_rate, **({"client": r, "strategy": how} | options))

    return make_one


def own_key(made, name="x", shard=0):
    return native_key(FilterKeys(name).bits(shard), made.generation).encode()


def numbers(count, start=0):
    return [str(number) for number in range(start, start + count)]


def test_a_server_without_the_commands_is_named_before_anything_is_written(r):
    assert r.info("server")
    for call in (
        lambda: BloomFilter("x", 1000, client=r, strategy="native"),
        lambda: BloomFilter.open("x", client=r, strategy="native"),
        lambda: asyncio.run(opened_by_asyncio(r)),
    ):
        with pytest.raises(
            ConfigurationError, match=r"^strategy 'native' needs BF\.INSERT.*\)"
        ) as e:
            call()
        assert "unknown command" in str(e.value)
        assert "\n" not in str(e.value)
    assert r.keys() == []


async def opened_by_asyncio(r):
    path = r.connection_pool.connection_kwargs["path"]
    client = redis.asyncio.Redis(unix_socket_path=path)
    try:
        await AsyncBloomFilter("x", 1000, client=client, strategy="native")
    finally:
        await client.aclose()


def test_a_user_who_may_not_use_them_is_told_so(r, how, restricted):
    with pytest.raises(ConfigurationError, match="refuses them .*permission"):
        BloomFilter("x", 1000, client=restricted("-bf.insert"), strategy=how)
    assert r.keys() == []


def test_it_and_the_others_do_not_attach_to_each_other(r, make, how):
    native, bits = make("x"), make("y", strategy="atomic")
    native.add("a")
    bits.add("a")
    before = {key: r.dump(key) for key in r.scan_iter()}
    for strategy in ("atomic", "lua", "transaction", "pipeline", "lock"):
        for on_lost in ("raise", "recreate"):
            with pytest.raises(FilterMismatchError, match="was created with strategy 'native'"):
                make("x", strategy=strategy, on_lost=on_lost)
            with pytest.raises(FilterMismatchError, match="was created with strategy 'native'"):
                BloomFilter.open("x", client=r, strategy=strategy, on_lost=on_lost)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match="is a bitmap, which strategy 'native'"):
            make("y", on_lost=on_lost)
        with pytest.raises(FilterMismatchError, match="is a bitmap, which strategy 'native'"):
            BloomFilter.open("y", client=r, strategy=how, on_lost=on_lost)
    assert {key: r.dump(key) for key in r.scan_iter()} == before


@pytest.mark.parametrize("shards", [1, 3])
def test_no_filter_of_an_earlier_generation_is_left_behind(r, make, shards):
    made = make(shards=shards, on_lost="recreate")
    expected = 2 * shards + 1
    for change in (
        made.clear,
        lambda: (r.delete(BITS), made.reattach()),
        lambda: (r.delete(own_key(made)), made.reattach()),
        lambda: (r.delete(META), made.reattach()),
        made.clear,
    ):
        change()
        assert made.add_many(numbers(20)) == [True] * 20
        assert len(r.keys()) == expected, change
        assert r.exists(own_key(made))
    assert made.delete() is True
    assert r.keys() == []


def test_what_the_server_refuses_to_create_leaves_nothing(r, make, monkeypatch):
    monkeypatch.setattr(placing, "EXPANSION", -1)
    with pytest.raises(redis.ResponseError, match="(?i)expansion"):
        make()
    assert r.keys() == []
