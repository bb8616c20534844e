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


@pytest.mark.parametrize(
    ("on_full", "shards", "capacity", "sample"),
    [("raise", 1, 20_000, 1024), ("grow", 1, 20_000, 1024), ("raise", 3, 50_000, 2**18)],
)
def test_a_part_of_the_bitmap_speaks_for_the_whole(
    r, monkeypatch, on_full, shards, capacity, sample
):
    monkeypatch.setattr(fill, "SAMPLE_BYTES", sample)
    on_full = Growth(up_to=capacity) if on_full == "grow" else on_full
    made = BloomFilter("x", capacity, 1e-6, client=r, shards=shards, on_full=on_full)
    items = [str(number) for number in range(2 * capacity)]
    assert made.add_many(items[:capacity]) == [True] * capacity
    with pytest.raises(CapacityError):
        made.update(items)
    assert capacity <= len(made) <= 1.5 * capacity


def test_what_was_discarded_takes_room(r):
    made = BloomFilter("x", 500, 1e-6, client=r, on_full="raise")
    made.update(map(str, range(500)))
    assert made.discard_many(map(str, range(250))) == [True] * 250
    with pytest.raises(CapacityError):
        made.update(f"new {number}" for number in range(200))


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


def test_an_add_a_second_later_looks_whether_others_have_filled_it(r):
    made, now = BloomFilter("x", 1000, 1e-6, client=r, on_full="raise"), [0.0]
    made._state.fill._clock = lambda: now[0]
    made.reattach()
    BloomFilter("x", 1000, 1e-6, client=r).update(map(str, range(1500)))
    assert made.add("at once")
    now[0] += 1
    assert made.add("finds it full")
    with pytest.raises(CapacityError):
        made.add("new")


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
