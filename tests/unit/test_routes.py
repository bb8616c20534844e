"""The route of a batch follows from the time that each is expected to take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock.filters.routes import (
    BITMAP_BIT_S,
    FAR_ROUND_TRIP_S,
    NEAR_ROUND_TRIP_S,
    QUICKEST,
    SLOWEST,
    Batch,
    RouteTimes,
)

MEGABYTE = 10**6


def batch(items, image_bytes=2 * 3_650_000, num_hashes=16, **other):
    """Return the batch of some items, by default for 10^6 at 1e-6 and one shard."""
    fields = {"shards": 1.0, "way": "items", "bit_s": 0.6e-6, "bit_bytes": 42, "may_merge": True}
    return Batch(items * num_hashes, image_bytes, **(fields | other))


def after(round_trip_s=None, **seconds):
    """Return what is known after a round trip, and after batches of 10,000 items by some routes."""
    times = RouteTimes()
    if round_trip_s is not None:
        times.note_round_trip(round_trip_s)
    for way, taken in seconds.items():
        times.note_batch(way, batch(10_000), taken)
    return times


SECONDS = st.floats(1e-6, 100)
BATCHES = st.builds(
    batch,
    st.integers(1, 10**6),
    st.floats(64, 1e9),
    st.integers(1, 64),
    shards=st.floats(1, 256),
    way=st.sampled_from(["items", "script"]),
    bit_s=st.floats(0.1e-6, 2e-6),
    bit_bytes=st.integers(2, 80),
    may_merge=st.booleans(),
)
TIMES = st.builds(after, SECONDS | st.none(), items=SECONDS, bitmap=SECONDS) | st.builds(
    after, SECONDS | st.none()
)


@pytest.mark.parametrize(
    ("items", "image_bytes", "way"),
    [
        (300, 2 * 3_650_000, "items"),
        (1000, 2 * 3_650_000, "bitmap"),
        (10, 2 * 18_000, "items"),
        (100, 2 * 18_000, "bitmap"),
        (10_000, 2 * 365_000_000, "items"),
    ],
)
def test_before_anything_was_measured(items, image_bytes, way):
    assert RouteTimes().choose(batch(items, image_bytes)) == way


def test_a_far_server_is_assumed_to_be_behind_a_slow_link():
    assert after(FAR_ROUND_TRIP_S / 2).choose(batch(1000)) == "bitmap"
    assert after(FAR_ROUND_TRIP_S * 2).choose(batch(1000)) == "items"
    assert after(FAR_ROUND_TRIP_S * 2).choose(batch(10_000)) == "bitmap"


@given(TIMES, BATCHES)
def test_the_quicker_route_is_taken_and_named(times, some):
    way = times.choose(some)
    assert way in (some.way, "bitmap")
    assert times.chosen == way
    other = "bitmap" if way == some.way else some.way
    if some.may_merge:
        assert times.expected_s(way, some) <= times.expected_s(other, some)
    else:
        assert way == some.way, "the server would be kept for long"
    assert times.choose(some) == way


@given(TIMES, BATCHES, st.floats(1.01, 1000))
def test_a_larger_bitmap_or_dearer_trips_never_speak_for_the_bitmap(times, some, factor):
    if times.choose(some) == "bitmap":
        return
    assert times.choose(some._replace(image_bytes=some.image_bytes * factor)) != "bitmap"
    assert times.choose(some._replace(shards=some.shards * factor)) != "bitmap"


@given(BATCHES, st.floats(1, 1000))
def test_more_items_never_speak_against_the_bitmap(some, factor):
    times = RouteTimes()
    assert some.bit_s > BITMAP_BIT_S
    if times.choose(some) == "bitmap":
        assert times.choose(some._replace(bits=int(some.bits * factor))) == "bitmap"


@given(SECONDS, st.integers(100, 10**6))
def test_what_was_measured_is_expected(seconds, items):
    times, some = after(0.0001), batch(items)
    for way in ("items", "bitmap"):
        quick, slow = QUICKEST, SLOWEST
        trips = 0.0001 if way == "items" else 0.0002
        work = RouteTimes().expected_s(way, some) - trips / 0.0001 * NEAR_ROUND_TRIP_S
        times.note_batch(way, some, 5 * seconds)
        for _ in range(60):
            times.note_batch(way, some, seconds)
        wanted = trips + min(max(seconds - trips, quick * work), slow * work)
        assert times.expected_s(way, some) == pytest.approx(wanted, rel=1e-6)


def test_a_route_that_was_slow_once_is_tried_again():
    times = after(items=0.2, bitmap=50.0)
    assert times.choose(batch(10_000)) == "items"
    chosen = []
    for _ in range(400):
        times.note_batch("items", batch(10_000), 0.2)
        chosen.append(times.choose(batch(10_000)))
    assert chosen.count("items") > 20, "a route that is slow is tried too often"
    assert chosen[-1] == "bitmap"


def test_a_route_that_was_not_taken_is_as_slow_as_the_machine():
    slow = after(items=10 * RouteTimes().expected_s("items", batch(10_000)))
    for items in (300, 440, 1000):
        assert slow.choose(batch(items)) == RouteTimes().choose(batch(items))


def test_a_round_trip_is_taken_at_its_shortest_and_follows_slowly():
    times = RouteTimes()
    times.note_round_trip(0.010)
    assert times.round_trip_s == 0.010
    times.note_round_trip(0.001)
    assert times.round_trip_s == 0.001
    times.note_round_trip(0.101)
    assert times.round_trip_s == pytest.approx(0.031)


def test_what_was_learned_stays_when_trips_become_longer():
    times = after(0.0001, items=0.1, bitmap=0.02)
    known = [times.expected_s(way, batch(1000)) for way in ("items", "bitmap")]
    for _ in range(50):
        times.note_round_trip(0.0101)
    now = [times.expected_s(way, batch(1000)) for way in ("items", "bitmap")]
    assert now == pytest.approx([known[0] + 0.01, known[1] + 0.02], rel=1e-6)


def test_a_short_round_trip_shows_that_a_server_is_near():
    times = after(2 * FAR_ROUND_TRIP_S, items=0.4)
    assert times.choose(batch(1000)) == "items"
    times.note_round_trip(NEAR_ROUND_TRIP_S)
    assert times.choose(batch(1000)) == "bitmap"


def test_few_bits_say_nothing():
    times = RouteTimes()
    times.note_batch("items", batch(10), 10.0)
    times.note_batch("script", batch(10_000), 10.0)
    assert times.expected_s("items", batch(10)) == RouteTimes().expected_s("items", batch(10))
