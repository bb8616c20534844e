"""Filters that grow (on_full="grow")."""

from __future__ import annotations

import asyncio

import pytest
import redis
from turns import Turns

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    MemoryBloomFilter,
    delete_filter,
)
from bloomlock.descriptor import slices_of
from bloomlock.filters import answers
from bloomlock.keys import FilterKeys

META, BITS = "bloomlock:{x}:meta", "bloomlock:{x}:bits"


def grown(client, *, times=64, capacity=1000, error_rate=1e-3, shards=1, **options):
    """A filter whose capacity was a guess some times too small, full, and its items."""
    made = BloomFilter(
        "x", capacity, error_rate, client=client, on_full="grow", up_to=times * capacity,
        shards=shards, **options,
    )  # fmt: skip
    items = [f"item {number}" for number in range(times * capacity)]
    return made, items


def slices(client, key=BITS):
    return slices_of(int.from_bytes(client.getrange(key, 0, 7), "big"))


@pytest.mark.parametrize(("strategy", "shards"), [("atomic", 1), ("lua", 3)])
def test_it_keeps_its_rate_and_every_item_when_the_guess_was_64_times_too_small(
    client, strategy, shards
):
    made, items = grown(client, strategy=strategy, shards=shards, capacity=600)
    beside = BloomFilter.open("x", client=client)
    new = 0
    for start in range(0, len(items), 4000):
        new += sum(made.add_many(items[start : start + 4000]))
        # An object that has not added sees each item at once.
        assert all(beside.exists_many(items[start : start + 4000 : 40]))
    assert all(made.exists_many(items))
    assert made.info().slices == 4
    # What was taken for seen when it was added, at less than the rate.
    assert len(items) * (1 - 1e-3) <= new <= len(items)
    others = 40_000
    wrong = sum(made.exists_many(f"other {number}" for number in range(others)))
    # Three deviations of a count above the rate.
    assert wrong <= others * 1e-3 + 3 * (others * 1e-3) ** 0.5
    found = made.info()
    assert found.current_error_rate <= 1e-3
    assert abs(found.estimated_count - new) < 0.02 * new
    assert not any(made.add_many(items[:5000]))


def test_a_capacity_that_was_guessed_right_needs_no_second_slice(r):
    for number in range(20):
        made = BloomFilter(f"x{number}", 3000, 1e-4, client=r, on_full="grow")
        made.update(f"{number} {one}" for one in range(3000))
        assert made.info().slices == 1


def test_beyond_up_to_it_refuses_new_items_and_knows_old_ones(r):
    made, items = grown(r, times=5)
    made.update(items)
    with pytest.raises(CapacityError, match="it has all its slices and holds 5000 items") as error:
        made.add_many([*items[:10], *(f"more {number}" for number in range(3000))])
    assert error.value.results[:10] == [False] * 10
    assert made.add("item 7") is False
    assert made.info().current_error_rate <= 1e-3


def test_one_by_one_in_every_way(client):
    made, items = grown(client, times=6, capacity=300)
    winners = [item for item in items if made.add(item)]
    assert len(winners) > 0.99 * len(items)
    assert made.info().slices == 3
    assert all(item in made for item in items)
    assert not any(made.add(item) for item in items)


def test_an_object_that_has_not_heard_asks_once_more_and_then_no_more(r, valkey):
    made, items = grown(r, times=21)
    turns = Turns()
    late = BloomFilter.open("x", client=turns.client(valkey))
    made.update(items)
    assert slices(r) == 3
    # What is in the first slice is found at once, in the others in the second round trip.
    assert turns.of(lambda: late.exists(items[0])) == 1
    view = late._state.view
    for _ in range(2):
        view.shards[0].chain.count = 1
        assert turns.of(lambda: late.exists(items[-1])) == 2
        assert late.exists(items[-1])
        assert turns.of(lambda: late.exists(items[-1])) == 1
        view.shards[0].chain.count = 1
        assert turns.of(lambda: late.add(items[-1])) == 2
        assert turns.of(lambda: late.add(items[-1])) == 1
        view.shards[0].chain.count = 1
        assert turns.of(lambda: late.exists_many(items[-300:])) == 2
        view.shards[0].chain.count = 1
        assert late.add_many(items[-300:]) == [False] * 300
    # No growth is a clear: its answers are kept, and its view.
    assert late._state.view is view


def test_a_clear_goes_back_to_the_first_slice(client):
    made, items = grown(client, times=5, shards=2)
    other = BloomFilter.open("x", client=client, on_lost="recreate")
    made.update(items)
    assert made.info().slices == 2
    made.clear()
    assert made.info().slices == 1
    assert made.add_many(items[:100]) == [True] * 100
    assert other.exists_many(items[:101]) == [True] * 100 + [False]
    stale = BloomFilter.open("x", client=client)
    made.clear()
    with pytest.raises(FilterLostError):
        stale.add("a")


def test_a_shard_that_is_lost_is_noticed_and_made_anew(client):
    made, items = grown(client, times=5, shards=3)
    made.update(items)
    key = FilterKeys("x").spread(3).bits(2)
    assert slices(client, key) == 2
    client.delete(key)
    with pytest.raises(FilterLostError):
        made.exists_many(items[:100])
    with pytest.raises(FilterLostError, match="one of its shards"):
        BloomFilter.open("x", client=client)
    again = BloomFilter.open("x", client=client, on_lost="recreate")
    assert again.info().slices == 1
    assert not any(again.exists_many(items))


def test_a_creation_that_stopped_is_finished_and_empties_no_shard_that_has_grown(client):
    made, items = grown(client, times=5, shards=3)
    made.update(items)
    client.hset(META, "state", "creating")
    assert all(BloomFilter.open("x", client=client).exists_many(items))


@pytest.mark.parametrize("change", ["slices", "growth", "up_to", "format", "short", "header"])
def test_a_damaged_filter_is_refused(r, change):
    made, items = grown(r, times=5)
    made.update(items)
    changes = {
        "slices": lambda: r.hset(META, "slices", "100/3,400/3"),
        "growth": lambda: r.hset(META, "growth", 3),
        "up_to": lambda: r.hset(META, "up_to", 7000),
        "format": lambda: r.hset(META, "format", 3),
        "short": lambda: r.set(BITS, r.get(BITS)[:-1]),
        "header": lambda: r.setrange(BITS, 0, made._state.view.header.to_bytes(8, "big")),
    }
    changes[change]()
    before = r.dump(BITS)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match="damaged") as error:
            BloomFilter.open("x", client=r, on_lost=on_lost)
        assert "\n" not in str(error.value)
    assert r.dump(BITS) == before
    assert delete_filter("x", client=r)
    assert r.keys() == []


def test_a_plain_filter_with_the_flag_of_growth_is_refused(r):
    made = BloomFilter("x", 1000, client=r)
    made.add("a")
    r.setbit(BITS, 15, 1)
    for attempt in (lambda: made.exists("a"), lambda: made.add("a"), made.info,
                    lambda: BloomFilter.open("x", client=r, on_lost="recreate")):  # fmt: skip
        with pytest.raises((FilterMismatchError, FilterLostError)):
            attempt()
    assert r.getbit(BITS, 15)


def test_other_parameters_are_refused(r):
    BloomFilter("x", 1000, client=r, on_full="grow", up_to=50_000)
    with pytest.raises(FilterMismatchError, match="growth: stored 4, asked None"):
        BloomFilter("x", 1000, client=r)
    with pytest.raises(FilterMismatchError, match="growth: stored 4, asked 2"):
        BloomFilter("x", 1000, client=r, on_full="grow", up_to=50_000, growth=2)
    with pytest.raises(FilterMismatchError, match="up_to: stored 50000, asked None"):
        BloomFilter("x", 1000, client=r, on_full="grow")
    BloomFilter("y", 1000, client=r)
    with pytest.raises(FilterMismatchError, match="growth: stored None, asked 4"):
        BloomFilter("y", 1000, client=r, on_full="grow")
    with pytest.raises(FilterMismatchError, match="does not grow"):
        BloomFilter.open("y", client=r, on_full="grow")
    found = BloomFilter.open("x", client=r)
    assert (found.growth, found.up_to) == (4, 50_000)
    assert "grows to 50000 items" in repr(found)


@pytest.mark.parametrize("strategy", ["transaction", "pipeline", "lock"])
def test_a_strategy_without_the_script_is_refused(r, strategy):
    says = "strategy must be 'atomic' or 'lua' for a filter that grows"
    with pytest.raises(ConfigurationError, match=says):
        BloomFilter("x", 1000, client=r, on_full="grow", strategy=strategy)
    assert r.keys() == []
    BloomFilter("x", 1000, client=r, on_full="grow")
    with pytest.raises(ConfigurationError, match=says):
        BloomFilter.open("x", client=r, strategy=strategy)


def test_what_needs_the_bits_in_one_place_is_refused(r):
    made, _ = grown(r)
    beside = BloomFilter("z", 1000, 1e-3, client=r)
    refused = {
        "blocked": lambda: made.rebuild(["a"], layout="blocked"),
        "seeds": lambda: made.rebuild(["a"], seeds=range(20)),
        "window": lambda: BloomFilter("y", 1000, client=r, on_full="grow", window=60),
        "union": lambda: made.union(made, into="y"),
        "union_update": lambda: made.union_update(beside),
        "intersection": lambda: beside.intersection_update(made),
        "jaccard": lambda: made.jaccard(made),
        "isdisjoint": lambda: made.isdisjoint(made),
        "to_memory": made.to_memory,
        "merge": lambda: made.update(MemoryBloomFilter(1000, 1e-3)),
        "like": lambda: MemoryBloomFilter.like(made),
        "memory": lambda: MemoryBloomFilter(1000, on_full="grow"),
    }
    keys = set(r.keys())
    for name, attempt in refused.items():
        with pytest.raises(ConfigurationError, match="grow") as error:
            attempt()
        assert "\n" not in str(error.value), name
    assert set(r.keys()) == keys


def test_a_server_without_scripts_is_refused_before_anything_is_written(r, valkey):
    r.acl_setuser("careful", enabled=True, nopass=True, keys="*", channels="*",
                  commands=["+@all", "-@scripting"])  # fmt: skip
    with (
        redis.Redis.from_url(valkey, username="careful", password="any") as careful,  # noqa: S106
        pytest.raises(ConfigurationError, match="needs a server that runs scripts"),
    ):
        BloomFilter("x", 1000, client=careful, on_full="grow")
    r.acl_deluser("careful")
    assert r.keys() == []


def test_without_the_memory_for_a_slice_it_refuses_new_items_until_there_is(r):
    made, items = grown(r, times=64, capacity=20_000, error_rate=1e-6)
    made.add_many(items[:20_000])
    assert slices(r) == 1
    used = r.info("memory")["used_memory"]
    r.config_set("maxmemory", used + 200_000)
    try:
        with pytest.raises(CapacityError, match="it cannot grow now") as error:
            made.add_many(items[20_000:30_000])
        assert slices(r) == 1
        assert made.exists(items[0])
    finally:
        r.config_set("maxmemory", 0)
    left = items[20_000 + len(error.value.results) :]
    assert sum(made.add_many(left[:20_000])) == 20_000
    assert slices(r) == 2


def test_asyncio(valkey, r):
    async def main():
        async with AsyncBloomFilter(
            "x", 500, 1e-3, client=valkey, on_full="grow", up_to=6000
        ) as made:
            items = [f"item {number}" for number in range(4000)]
            first = await made.add_many(items[:2000])
            rest = await asyncio.gather(*(made.add(item) for item in items[2000:] * 2))
            there = await asyncio.gather(*(made.exists(item) for item in items))
            return sum(first) + sum(rest), all(there), (await made.info()).slices

    new, there, number = asyncio.run(main())
    assert 3990 <= new <= 4000
    assert there
    assert number == 3
    assert slices(r) == 3


def test_the_near_cache_keeps_its_answers_across_a_growth(r):
    made, items = grown(r, near_cache=100_000)
    made.add_many(items[:3000])
    assert slices(r) == 2
    assert all(map(made.is_kept, items[:3000]))


@pytest.mark.parametrize("route", ["auto", "items", "script", "bitmap"])
def test_every_route_is_the_same(r, route):
    made, items = grown(r, times=21)
    assert sum(made.add_many(items, route=route)) > 0.999 * len(items)
    assert all(made.exists_many(items, route=route))


def test_a_key_of_the_hash_goes_with_growth(r):
    made, items = grown(r, times=5, key=b"secret" * 4)
    made.update(items)
    again = BloomFilter.open("x", client=r, key=b"secret" * 4)
    assert all(again.exists_many(items))
    assert slices(r) == 2


def test_a_filter_that_has_grown_expires_and_stays_in_use(r):
    made, items = grown(r, times=5, shards=2)
    made.update(items)
    assert made.info().slices == 2
    made.expire(1000)
    keys = [META, *(FilterKeys("x").spread(2).bits(n) for n in range(2))]
    assert all(r.pttl(key) > 900_000 for key in keys)
    assert 900 < made.ttl() <= 1000
    assert all(made.exists_many(items))
    made.persist()
    assert [r.ttl(key) for key in keys] == [-1] * 3
    made.delete()
    idle, items = grown(r, times=5, idle_ttl=1000)
    idle.update(items)
    assert slices(r) == 2
    r.pexpire(BITS, 5000)
    again = BloomFilter.open("x", client=r)
    assert again.exists(items[-1])
    assert r.pttl(BITS) > 900_000


def test_a_filter_that_has_grown_is_replaced_as_a_whole(r, tmp_path):
    made, items = grown(r, times=5, shards=3)
    made.update(items)
    MemoryBloomFilter(1000, 1e-3, shards=2).save(tmp_path / "file")
    with BloomFilter.import_file("x", tmp_path / "file", client=r, replace=True) as found:
        assert (found.shards, found.growth) == (2, None)
        assert not any(found.exists_many(items[:100]))
    keys = [FilterKeys("x").spread(2).bits(n).encode() for n in range(2)]
    assert sorted(r.keys("*bits*")) == sorted(keys)


def test_what_was_meant_for_a_large_slice_does_not_overfill_a_small_one(r):
    """Clients of a filter that has grown, and is cleared, add no more than their shares."""
    made, items = grown(r, times=64, capacity=1000, error_rate=1e-3)
    # More than are in the third slice.
    made.update(items[:25_000])
    clients = [BloomFilter.open("x", client=r, on_lost="recreate") for _ in range(6)]
    assert made.info().slices > 3
    most = min(client._state.fill.until_look for client in clients)
    assert most > 300
    made.clear()
    cores = [
        answers.add_many(client._state, [f"{number} {item}" for item in range(most)])
        for number, client in enumerate(clients)
    ]
    added = in_turns(clients, cores)
    assert sum(map(sum, added)) >= 6 * most * (1 - 2e-3)
    assert made.info().slices > 1
    made.reattach()
    assert made.info().current_error_rate <= 1e-3


def in_turns(clients, cores):
    """Carry out cores together, a request of each in turn, and return their results."""
    results = [None] * len(cores)
    left = dict.fromkeys(range(len(cores)))

    def one(step):
        return (yield step)

    while left:
        for number, answer in list(left.items()):
            try:
                step = cores[number].send(answer)
                left[number] = clients[number]._run(one(step))
            except StopIteration as stop:
                results[number] = stop.value
                del left[number]
    return results
