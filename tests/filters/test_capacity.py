"""A filter says that it is full before it lies too often."""

from __future__ import annotations

import logging

import pytest

from bloomlock import BloomFilter, CapacityError, ConfigurationError


def test_exactly_the_capacity_fits(client):
    for capacity in (1, 10, 100, 3000):
        made = BloomFilter(f"c {capacity}", capacity, 1e-6, client=client, on_full="raise")
        assert sum(made.add(str(number)) for number in range(capacity)) == capacity
        made = BloomFilter(f"b {capacity}", capacity, 1e-6, client=client, on_full="raise")
        assert sum(made.add_many(str(number) for number in range(capacity))) == capacity
        made = BloomFilter(f"u {capacity}", capacity, 1e-6, client=client, on_full="raise")
        made.update(str(number) for number in range(capacity))
        assert len(made) == pytest.approx(capacity, rel=0.02, abs=2)


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


def test_grow_is_refused_clearly(client):
    with pytest.raises(ConfigurationError, match="on_full must be 'warn' or 'raise', not 'grow'"):
        BloomFilter("x", 1000, client=client, on_full="grow")
    assert client.dbsize() == 0
