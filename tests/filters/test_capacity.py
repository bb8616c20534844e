"""A filter has the rate it was made for, and says that it is full before it lies too often."""

from __future__ import annotations

import pytest
from proxy import Proxy

from bloomlock import BloomFilter, Growth
from bloomlock.errors import CapacityError
from bloomlock.filters import fill


def test_exactly_the_capacity_fits(r):
    for capacity in (1, 10, 100, 3000):
        made = BloomFilter(f"c {capacity}", capacity, 1e-6, client=r, on_full="raise")
        assert sum(made.add(str(number)) for number in range(capacity)) == capacity
        made = BloomFilter(f"b {capacity}", capacity, 1e-6, client=r, on_full="raise")
        assert sum(made.add_many(str(number) for number in range(capacity))) == capacity
        made = BloomFilter(f"u {capacity}", capacity, 1e-6, client=r, on_full="raise")
        made.update(str(number) for number in range(capacity))
        assert len(made) == pytest.approx(capacity, rel=0.02, abs=2)


@pytest.mark.parametrize("options", [{"on_full": "raise"}, {"on_full": Growth(4, 20_000)}])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_part_of_the_bitmap_speaks_for_the_whole(r, monkeypatch, options, shards):
    monkeypatch.setattr(fill, "SAMPLE_BYTES", 1024)
    made = BloomFilter("x", 20_000, 1e-6, client=r, shards=shards, **options)
    items = [str(number) for number in range(60_000)]
    assert made.add_many(items[:20_000]) == [True] * 20_000
    with pytest.raises(CapacityError):
        made.update(items)
    assert 20_000 <= len(made) <= 30_000


def test_few_items_over_many_shards_fit(r):
    for shards, capacity in ((32, 40), (4, 400)):
        made = BloomFilter(f"{shards}", capacity, 1e-6, client=r, shards=shards,
                           on_full="raise")  # fmt: skip
        with pytest.raises(CapacityError) as caught:
            made.add_many(str(number) for number in range(3 * capacity))
        assert caught.value.results == [True] * len(caught.value.results)
        assert capacity <= len(caught.value.results) <= 1.05 * capacity + 2
        made.clear()
        assert made.add_many(map(str, range(capacity))) == [True] * capacity


def test_what_it_costs_to_keep_the_capacity(r, valkey):
    with Proxy(valkey) as proxy:
        r.flushall()
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


def test_a_filter_cleared_by_another_is_no_longer_full(r):
    made = BloomFilter("x", 1000, 1e-6, client=r, on_full="raise", on_lost="recreate")
    made.update(map(str, range(900)))
    BloomFilter("x", 1000, 1e-6, client=r).update(map(str, range(3000)))
    with pytest.raises(CapacityError):
        made.update(f"more {number}" for number in range(1000))
    BloomFilter("x", 1000, 1e-6, client=r).clear()
    assert made.add("new")


def test_a_filter_that_gets_far_too_many_says_so_at_each_doubling(r, caplog):
    made = BloomFilter("x", 1000, client=r)
    for times, more in ((1, 1200), (2, 1200), (4, 2400), (8, 4800)):
        caplog.clear()
        made.update(f"{times} {number}" for number in range(more))
        assert caplog.text.count("is full: about") == 1
