"""A filter says that it is full before it lies too often."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
import redis
from proxy import Proxy

from bloomlock import AsyncBloomFilter, BloomFilter, CapacityError, FilterLostError


def test_exactly_the_capacity_fits(client):
    for capacity in (1, 10, 100, 3000):
        made = BloomFilter(f"c {capacity}", capacity, 1e-6, client=client, on_full="raise")
        assert sum(made.add(str(number)) for number in range(capacity)) == capacity
        made = BloomFilter(f"b {capacity}", capacity, 1e-6, client=client, on_full="raise")
        assert sum(made.add_many(str(number) for number in range(capacity))) == capacity
        made = BloomFilter(f"u {capacity}", capacity, 1e-6, client=client, on_full="raise")
        made.update(str(number) for number in range(capacity))
        assert len(made) == pytest.approx(capacity, rel=0.02, abs=2)


@pytest.mark.parametrize("batch", [5000, 100])
def test_sixteen_that_add_together_keep_the_capacity(valkey, batch):
    capacity, adders = 10_000, 16
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        shared = BloomFilter("x", capacity, 1e-6, client=client)
        barrier = threading.Barrier(adders)
        counts = []

        def work(number):
            with redis.Redis.from_url(valkey) as own:
                mine = BloomFilter("x", capacity, 1e-6, client=own, on_full="raise")
                barrier.wait(60)
                added = 0
                try:
                    for start in range(0, capacity, batch):
                        items = (f"{number} {start + index}" for index in range(batch))
                        added += sum(mine.add_many(items))
                except CapacityError as error:
                    added += sum(map(bool, error.results))
                counts.append(added)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(adders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(counts) == adders
        # Without shares they add 18,000 and more.
        assert capacity <= sum(counts) <= 1.1 * capacity
        assert shared.count() == pytest.approx(sum(counts), rel=0.02)


@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_few_items_over_many_shards_fit(r, layout):
    for shards, capacity in ((32, 40), (4, 400)):
        made = BloomFilter(f"{shards}", capacity, 1e-6, client=r, shards=shards, layout=layout,
                           on_full="raise")  # fmt: skip
        with pytest.raises(CapacityError) as caught:
            made.add_many(str(number) for number in range(3 * capacity))
        assert caught.value.results == [True] * len(caught.value.results)
        assert capacity <= len(caught.value.results) <= 1.05 * capacity + 2
        made.clear()
        assert made.add_many(map(str, range(capacity))) == [True] * capacity


def test_a_batch_is_no_larger_than_what_is_free(client):
    for capacity in (100, 2000):
        made = BloomFilter(f"{capacity}", capacity, 1e-6, client=client, on_full="raise")
        items = [str(number) for number in range(20_000)]
        with pytest.raises(CapacityError) as caught:
            made.add_many(items)
        added = len(caught.value.results)
        assert capacity <= added <= 1.05 * capacity
        assert caught.value.results == [True] * added
        there = made.exists_many(items)
        assert there == [True] * added + [False] * (20_000 - added)
        made.clear()
        with pytest.raises(CapacityError) as caught:
            made.update(items)
        assert caught.value.added <= len(made) <= 1.05 * capacity


def test_what_it_costs_to_keep_the_capacity(valkey):
    with Proxy(valkey) as proxy:
        redis.Redis.from_url(valkey).flushall()
        made = BloomFilter("x", 2000, 1e-6, client=proxy.url, on_full="raise")
        items = [str(number) for number in range(2000)]

        def commands(act):
            before = len(proxy.seen)
            act()
            return len(proxy.seen) - before

        # Far from full a single add is one command, but for a look each second and each 64th part.
        assert commands(lambda: [made.add(item) for item in items[:30]]) < 45
        made.update(items)
        # Seen items need no share, however full the filter is.
        assert commands(lambda: made.add_many(items)) < 200
        assert commands(lambda: made.add_many([*items, "new"])) < 200
        assert len(made) == pytest.approx(2001, abs=20)


def test_a_full_filter_refuses_new_items_and_loses_none(client):
    made = BloomFilter("x", 2000, 1e-6, client=client, on_full="raise")
    added = []
    with pytest.raises(CapacityError, match="full") as caught:
        for number in range(20_000):
            assert made.add(str(number))
            added += [str(number)]
    assert caught.value.results == []
    assert 2000 <= len(added) < 2400
    assert all(made.exists_many(added))
    assert made.add(added[0]) is False
    assert made.add_many(added[:5]) == [False] * 5
    before = client.get("bloomlock:{x}:bits")
    with pytest.raises(CapacityError) as caught:
        made.add_many([*added[:5], "new", added[6]])
    assert caught.value.results == [False] * 5
    assert client.get("bloomlock:{x}:bits") == before
    made.clear()
    assert made.add("new")


def test_a_process_that_attaches_to_a_full_filter_refuses_at_once(client):
    BloomFilter("x", 1000, 1e-6, client=client).update(map(str, range(3000)))
    made = BloomFilter("x", 1000, 1e-6, client=client, on_full="raise")
    with pytest.raises(CapacityError):
        made.add("new")


def test_a_filter_cleared_by_another_is_no_longer_full(client):
    made = BloomFilter("x", 1000, 1e-6, client=client, on_full="raise", on_lost="recreate")
    made.update(map(str, range(900)))
    BloomFilter("x", 1000, 1e-6, client=client).update(map(str, range(3000)))
    with pytest.raises(CapacityError):
        made.update(f"more {number}" for number in range(1000))
    BloomFilter("x", 1000, 1e-6, client=client).clear()
    assert made.add("new")


def test_warnings_come_once_each(client, caplog):
    made = BloomFilter("x", 1000, 1e-6, client=client)
    with caplog.at_level(logging.WARNING, "bloomlock"):
        for number in range(2500):
            made.add(str(number))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "'x' is nearly full: about 9" in messages[0]
    assert "'x' is full: about 1" in messages[1]


def test_the_current_rate_rises_beyond_capacity(client):
    made = BloomFilter("x", 1000, 0.01, client=client)
    made.update(map(str, range(1000)))
    assert made.info().current_error_rate == pytest.approx(0.01, rel=0.3)
    made.update(map(str, range(4000)))
    info = made.info()
    assert info.current_error_rate > 0.2
    measured = sum(made.exists_many(f"out {number}" for number in range(5000))) / 5000
    assert measured == pytest.approx(info.current_error_rate, rel=0.15)


@pytest.mark.parametrize("options", [{"on_full": "raise"}, {"on_full": "grow"}], ids=str)
def test_what_is_tested_before_it_is_added_is_no_answer_to_an_add(r, valkey, options):
    """Near the capacity a batch is tested first; "not there" is not "not new"."""
    made = BloomFilter("x", 20, 1e-9, client=r, shards=3, **options)
    r.delete(made._state.view.shards[1].key)
    items = [f"item {number}" for number in range(60)]
    with pytest.raises(FilterLostError) as error:
        made.add_many(items)
    assert error.value.results == []
    with pytest.raises(FilterLostError):
        made.claim_many(items)
    r.lpush(made._state.view.shards[1].key, "what another program wrote")
    made._state.lost = None
    with pytest.raises(redis.ResponseError, match="WRONGTYPE") as failed:
        made.add_many(items)
    assert not getattr(failed.value, "results", [])

    async def add_together():
        async with AsyncBloomFilter("y", 20, 1e-9, client=valkey, shards=3, **options) as other:
            r.delete(other._state.view.shards[1].key)
            return await asyncio.gather(*map(other.add, items), return_exceptions=True)

    answers = asyncio.run(add_together())
    assert False not in answers, "seen, though no client has added it"
