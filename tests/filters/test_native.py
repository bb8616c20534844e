"""Strategy "native": the server's own filter (BF.*), and the guarantees that hold around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

import pytest
import redis

from bloomlock import (
    AsyncBloomFilter,
    BatchError,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    MemoryBloomFilter,
    delete_filter,
)
from bloomlock.descriptor import header_of
from bloomlock.filters import contents
from bloomlock.keys import FilterKeys, native_key

META, BITS = b"bloomlock:{x}:meta", b"bloomlock:{x}:bits"


@pytest.fixture(params=["native"])
def how(request):
    """The strategy, so that the servers have BF.*."""
    return request.param


@pytest.fixture
def make(client, how):
    def make_one(name="x", capacity=1000, error_rate=1e-6, **options):
        options = {"client": client, "strategy": how} | options
        return BloomFilter(name, capacity, error_rate, **options)

    return make_one


@pytest.fixture
def reopen(client, how):
    return lambda name="x", **options: BloomFilter.open(
        name, client=client, **({"strategy": how} | options)
    )


def own_key(made, name="x", shard=0):
    return native_key(FilterKeys(name).bits(shard), made.generation).encode()


def numbers(count, start=0):
    return [str(number) for number in range(start, start + count)]


def test_a_filter_is_a_header_and_a_key_that_carries_the_generation(client, make):
    made = make()
    assert set(client.keys()) == {META, BITS, own_key(made)}
    assert client.get(BITS) == header_of(made.generation).to_bytes(8, "big")
    assert client.hmget(META, "format", "layout") == [b"3", b"native"]
    assert (made.layout, made.strategy, made.seeds, made.key_kind) == ("native",) * 2 + (None,) * 2
    assert repr(made).endswith("1 shard, native>")


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


def test_a_user_who_may_not_use_them_is_told_so(client, how):
    client.execute_command("ACL", "SETUSER", "some", "on", ">pw", "~*", "&*", "+@all", "-bf.insert")
    path = client.connection_pool.connection_kwargs["path"]
    try:
        with (
            redis.Redis(unix_socket_path=path, username="some", password="pw") as limited,  # noqa: S106
            pytest.raises(ConfigurationError, match="refuses them .*permission"),
        ):
            BloomFilter("x", 1000, client=limited, strategy=how)
        assert client.keys() == []
    finally:
        client.execute_command("ACL", "DELUSER", "some")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "blocked"}, "layout must be 'classic'.*strategy='native'.*not 'blocked'"),
        ({"seeds": [1, 2]}, r"seeds must be None.*strategy='native'.*not \[1, 2\]"),
        ({"num_hashes": 8}, "num_hashes must be None.*strategy='native'.*not 8"),
        ({"optimize": "speed"}, "optimize must be None.*strategy='native'.*not 'speed'"),
        ({"key": True}, "key must be None with strategy='native'"),
        ({"key": b"0123456789abcdef"}, "key must be None with strategy='native'"),
        ({"layout": "native"}, "layout must be 'classic' or 'blocked', not 'native'"),
        ({"capacity": 2**43}, r"capacity is 8796093022208: .* 2\^30 items"),
        ({"capacity": 2**31, "shards": 1}, r"capacity is 2147483648: .* 2\^30 items"),
    ],
)
def test_what_the_server_cannot_do_is_refused_before_anything_is_written(
    client, make, how, options, says
):
    for face in (
        make,
        lambda **more: AsyncBloomFilter("x", strategy=how, **({"capacity": 9} | more)),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            face(**options)
        assert "0123456789abcdef" not in str(caught.value)
    assert client.keys() == []


def test_what_needs_the_bits_is_refused(client, make, reopen):
    made = make()
    before = client.dump(BITS)
    memory = MemoryBloomFilter(1000)
    memory.add("a")
    for call in (
        made.to_memory,
        lambda: made.update(memory),
        lambda: MemoryBloomFilter.like(made),
        lambda: made.add_many(["a"], route="bitmap"),
        lambda: made.exists_many(["a"], route="script"),
        lambda: reopen(key="0123456789abcdef"),
    ):
        with pytest.raises(ConfigurationError, match="strategy.{1,3}native"):
            call()
    assert client.dump(BITS) == before
    assert len(made) == 0


def test_it_and_the_others_do_not_attach_to_each_other(client, make, reopen):
    native, bits = make("x"), make("y", strategy="atomic")
    native.add("a")
    bits.add("a")
    before = {key: client.dump(key) for key in client.scan_iter()}
    for strategy in ("atomic", "lua", "transaction", "pipeline", "lock"):
        for on_lost in ("raise", "recreate"):
            with pytest.raises(FilterMismatchError, match="was created with strategy 'native'"):
                make("x", strategy=strategy, on_lost=on_lost)
            with pytest.raises(FilterMismatchError, match="was created with strategy 'native'"):
                reopen("x", strategy=strategy, on_lost=on_lost)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match="is a bitmap, which strategy 'native'"):
            make("y", on_lost=on_lost)
        with pytest.raises(FilterMismatchError, match="is a bitmap, which strategy 'native'"):
            reopen("y", on_lost=on_lost)
    assert {key: client.dump(key) for key in client.scan_iter()} == before


@pytest.mark.parametrize("first", ["native", "atomic"])
def test_a_clear_does_not_empty_a_filter_of_the_other_kind(client, make, first):
    second = "atomic" if first == "native" else "native"
    late = make(strategy=first)
    make(strategy=first).delete()
    other = make(strategy=second)
    other.add("a")
    with pytest.raises(FilterMismatchError, match="native"):
        late.clear()
    assert other.exists("a")


def test_an_update_of_a_generation_that_is_over_changes_nothing(client, make):
    late, other = make(), make()
    other.clear()
    for call in (lambda: late.add("a"), lambda: late.add_many(numbers(3000))):
        with pytest.raises(FilterLostError, match="cleared"):
            call()
    assert len(other) == 0
    assert set(client.keys()) == {META, BITS, own_key(other)}
    other.delete()
    late = make()
    make().delete()
    for call in (lambda: late.add("a"), lambda: late.update(["a"])):
        with pytest.raises(FilterLostError, match="missing"):
            call()
    assert client.keys() == []


@pytest.mark.parametrize("shards", [1, 3])
def test_no_filter_of_an_earlier_generation_is_left_behind(client, make, shards):
    made = make(shards=shards, on_lost="recreate")
    expected = 2 * shards + 1
    for change in (
        made.clear,
        lambda: (client.delete(BITS), made.reattach()),
        lambda: (client.delete(own_key(made)), made.reattach()),
        lambda: (client.delete(META), made.reattach()),
        made.clear,
    ):
        change()
        assert made.add_many(numbers(20)) == [True] * 20
        assert len(client.keys()) == expected, change
        assert client.exists(own_key(made))
    assert made.delete() is True
    assert client.keys() == []


@pytest.mark.parametrize("damage", [{"capacity": "x"}, {"layout": "classic"}, {"format": "1"}])
def test_a_damaged_filter_can_be_deleted(client, make, damage):
    make(shards=2)
    client.hset(META, mapping=damage)
    with pytest.raises(FilterMismatchError, match="damaged"):
        make(shards=2)
    client.config_resetstat()
    assert delete_filter("x", client=client) is True
    assert client.keys() == []
    # Any of thousands of shards may be there; one that is not costs no transaction.
    assert client.info("commandstats")["cmdstat_watch"]["calls"] == 2


def test_deleting_while_others_clear_leaves_no_filter_behind(client, make, reopen, seed):
    stop = threading.Event()

    def clear():
        while not stop.is_set():
            with contextlib.suppress(Exception):
                reopen().clear()

    threads = [threading.Thread(target=clear) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            make(on_lost="recreate").delete()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    delete_filter("x", client=client)
    assert client.keys() == []


@pytest.mark.parametrize("key", ["its own", "header"])
def test_a_key_that_is_gone_is_noticed_by_every_operation(client, make, key):
    for number, call in enumerate(
        (
            lambda made: made.add("a"),
            lambda made: made.exists("a"),
            lambda made: made.add_many(numbers(3000)),
            lambda made: made.exists_many(numbers(3000)),
            lambda made: made.update(["a"]),
            lambda made: made.count(),
            lambda made: made.info(),
            lambda made: made.reattach(),
        )
    ):
        made = make(f"x{number}")
        made.add("a")
        client.delete(
            own_key(made, made.name) if key == "its own" else FilterKeys(made.name).bits(0)
        )
        for _ in range(2):
            with pytest.raises(FilterLostError):
                call(made)


def test_what_the_server_refuses_to_create_leaves_nothing(client, make, monkeypatch):
    monkeypatch.setattr(contents, "EXPANSION", -1)
    with pytest.raises(redis.ResponseError, match="(?i)expansion"):
        make()
    assert client.keys() == []


def test_beyond_its_capacity_it_grows(make, caplog):
    made = make(capacity=1000, error_rate=1e-6)
    with caplog.at_level(logging.WARNING, "bloomlock"):
        assert sum(made.add_many(numbers(20_000))) == 20_000
    assert "full" in caplog.text
    assert "takes more memory" in caplog.text
    assert all(made.exists_many(numbers(20_000)))
    assert len(made) == 20_000
    assert made.info().current_error_rate <= 1e-6
    assert not any(made.exists_many(numbers(20_000, 10**6)))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_full_filter_refuses_what_is_new_where_asked(make, shards):
    made = make(capacity=1000, on_full="raise", shards=shards)
    # In filters as small as these RedisBloom takes one or two items for seen ones.
    assert sum(made.add_many(numbers(1000))) > 990
    with pytest.raises(CapacityError):
        made.add_many(numbers(200, 5000))
    assert 1000 <= len(made) <= 1020
    assert made.add("7") is False


def test_items_that_the_server_refuses_are_not_added(client, make):
    """A filter that may not grow answers as many items as fit, and an error."""
    made = make(capacity=10_000)
    client.delete(own_key(made))
    client.execute_command("BF.RESERVE", own_key(made), 1e-6, 2300, "NONSCALING")
    with pytest.raises(BatchError, match="full") as caught:
        made.add_many(numbers(3000))
    assert caught.value.results == [True] * 2300
    assert len(made) == 2300
    with pytest.raises(redis.ResponseError, match="full"):
        made.add("new")
    assert made.exists_many(numbers(3000)) == [True] * 2300 + [False] * 700


def test_a_copy_of_more_than_one_chunk(client, make, reopen):
    made = make(capacity=3_500_000, shards=2)
    items = numbers(5000)
    made.update(items)
    copied = made.copy("y")
    assert len(copied) == len(made) == 5000
    assert all(copied.exists_many(items))
    assert copied.generation != made.generation
    assert copied.add("new") is True
    assert not made.exists("new")
    assert reopen("y").exists("new")
    assert copied.delete()
    made.delete()
    assert client.keys() == []


def test_a_copy_that_is_overtaken_by_a_clear_is_none(client, make, reopen):
    made = make()
    made.add("a")
    reopen().clear()
    with pytest.raises(FilterLostError, match="cleared or lost while it was copied"):
        made.copy("y")
    assert not client.keys("*{y}*")


def test_info_says_what_the_server_knows(make):
    made = make(capacity=50_000, error_rate=1e-4, shards=2)
    made.update(numbers(20_000))
    info = made.info()
    assert info.estimated_count == made.count() == pytest.approx(20_000, abs=20)
    assert info.memory_bytes == pytest.approx(info.num_bits / 8, rel=0.05, abs=1000)
    assert 0 < info.current_error_rate <= 1e-4
    assert (info.layout, info.strategy, info.shards) == ("native", "native", 2)


@pytest.mark.measures
def test_the_error_rate_is_kept(make):
    made = make(capacity=50_000, error_rate=0.01)
    made.update(numbers(50_000))
    false = sum(made.exists_many(numbers(50_000, 10**6)))
    # 500 at the rate asked for, with a deviation of 22.
    assert false < 500 + 5 * 22


@pytest.mark.parametrize("shards", [1, 3])
def test_items_of_any_bytes(make, shards):
    made = make(shards=shards)
    items = [b"", b"\0", b"a\0", b"a\0\0", b"a", "ü".encode(), bytes(range(256)), b"\r\n", b"ITEMS"]
    assert made.add_many(items) == [True] * len(items)
    assert made.add_many([*items] * 3) == [False] * 3 * len(items)
    assert [made.add(item) for item in items] == [False] * len(items)
    assert [made.exists(item + b"x") for item in items] == [False] * len(items)
