"""The mathematics of time windows: what is live when, how a shard turns, sizes and their rate."""

from __future__ import annotations

import math
import random
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_turns import turn

from bloomlock.errors import ConfigurationError
from bloomlock.windows import CELL_BITS, State, Window, check_window, read_window

DAY_US = 86_400 * 10**6
windows = st.builds(
    Window, st.integers(3_000_000, 3650 * DAY_US), st.sampled_from(sorted(CELL_BITS))
)


@given(windows, st.integers(10**15, 4 * 10**15), st.integers(0, 10**10), st.integers(0, 3))
def test_an_item_is_remembered_for_the_window_and_one_slice(window, added_us, later_us, behind):
    """Whatever the shard has turned to since: nothing depends on a client that turns it in time."""
    epoch = window.epoch_at(added_us)
    for after_us in (later_us, window.length_us, window.length_us + window.slice_us):
        now = window.epoch_at(added_us + after_us)
        turned_to = max(epoch, now - behind)
        is_live = window.is_live(epoch, turned_to, now)
        assert (
            is_live == bool(window.live_mask(turned_to, now) >> epoch % window.cell_bits & 1)
            or now - epoch >= window.cell_bits
        )
        if after_us <= window.length_us:
            assert is_live
        if after_us >= window.slice_us * (window.slices + 1):
            assert not is_live
    assert window.slice_us * (window.slices + 1) <= (
        window.length_us * (1 + 1 / window.slices) + window.slices + 1
    )


@given(windows, st.integers(0, 40), st.integers(0, 32), st.integers(0, 9), st.integers(1, 9))
def test_a_shard_turns_and_wipes_nothing_that_is_live(window, behind, ahead, done, parts):
    now = 10_000
    state = State(now - behind, min(ahead, window.cell_bits), min(done, parts))
    wiped = set()
    for _ in range(3 * parts + 3):
        before, (state, part) = state, turn(window, state, now, parts)
        if part is not None:
            live = window.live_mask(before.epoch, now)
            assert not any(live >> number & 1 for number in part[1])
            wiped.add((part[0], part[1]))
    assert state == State(now, 1, parts)
    # The slice that comes next is wiped in every part.
    assert {number for number, slices in wiped if (now + 1) % window.cell_bits in slices} >= (
        set(range(parts)) if behind else set()
    )


@given(windows, st.integers(1, 30), st.integers(1, 5))
def test_no_slice_comes_back_that_was_not_wiped(window, steps, parts):
    """Each slice that becomes current was wiped in all parts since its last epoch."""
    chance = random.Random(steps)
    now, state = 1000, State(1000, 1, 0)
    dirty = {number: set(range(parts)) for number in range(window.cell_bits)}
    for _ in range(steps):
        now += chance.choice((0, 0, 1, 1, 2, window.slices + 5))
        for _ in range(chance.randrange(2 * parts + 2)):
            epoch = state.epoch
            state, part = turn(window, state, now, parts)
            if part is not None:
                for number in part[1]:
                    dirty[number] = dirty[number] - {part[0]}
            for passed in range(max(epoch, state.epoch - window.cell_bits) + 1, state.epoch + 1):
                assert not dirty[passed % window.cell_bits]
            if state.epoch > epoch:
                dirty[state.epoch % window.cell_bits] = set(range(parts))


@given(st.integers(0, 2**39 - 1), st.integers(0, 32), st.integers(0, 2**16 - 1))
def test_a_state_is_read_as_it_was_written(epoch, ahead, parts):
    state = State(epoch, ahead, parts)
    assert State.of(state.word) == state
    assert state.word < 2**63


@pytest.mark.parametrize("slices", CELL_BITS)
@pytest.mark.parametrize("error_rate", [1e-3, 1e-6])
def test_the_formula_keeps_the_rate(slices, error_rate):
    window = Window(7 * DAY_US, slices)
    size = window.size_for(100_000, error_rate)
    assert size.shards == 1
    items = window.slice_items(100_000)
    fill = -math.expm1(-size.num_hashes * items / size.shard_bits)
    assert (slices + 1) * fill**size.num_hashes <= error_rate * 1.0001
    fewer = -math.expm1(-size.num_hashes * items / (0.999 * size.shard_bits))
    assert (slices + 1) * fewer**size.num_hashes > error_rate


def test_bits_an_item():
    window = Window(7 * DAY_US, 14)
    k = window.num_hashes(1e-6, "memory")
    size = window.size_for(1_000_000, 1e-6, num_hashes=k)
    assert k == 17
    assert 40 < size.num_bits * window.cell_bits / 1_000_000 < 41


@pytest.mark.parametrize("slices", CELL_BITS)
def test_the_rate_of_all_live_slices_together_is_that_asked_for(slices, seed):
    """All slices full: a mistake is one slice that has all k bits, and the cells are shared."""
    chance = np.random.default_rng(seed)
    window, capacity, rate = Window(7 * DAY_US, slices), 60_000, 1e-2
    size = window.size_for(capacity, rate)
    cells = np.zeros(size.shard_bits, np.uint32)
    each = window.slice_items(capacity)
    for number in range(slices + 1):
        places = chance.integers(size.shard_bits, size=(each, size.num_hashes))
        cells[places.ravel()] |= np.uint32(1 << number)
    asked = 200_000
    places = chance.integers(size.shard_bits, size=(asked, size.num_hashes))
    found = np.count_nonzero(np.bitwise_and.reduce(cells[places], axis=1))
    print(found / asked)
    # The formula gives about the rate itself. Each run draws anew: seven deviations upwards, of
    # which the filter's own scatter takes a fraction, are passed by chance in 1e-10 of all runs.
    assert 0.8 * rate * asked < found < rate * asked + 7 * math.sqrt(rate * asked)


@pytest.mark.parametrize(
    ("window", "slices", "message"),
    [
        (0, None, "window must be a timedelta or seconds, at least 1.4 s with 14 slices"),
        (timedelta(0), None, "not datetime.timedelta(0)"),
        (-5, None, "not -5"),
        (timedelta(days=4000), None, "at most 3650 days"),
        (float("nan"), None, "not nan"),
        (True, None, "not True"),
        ("7d", None, "not '7d'"),
        (60, 7, "slices must be one of 6, 14, 30 or None, not 7"),
        (60, True, "not True"),
        (1, 30, "at least 3 s with 30 slices"),
        (None, 14, "slices must be None without window="),
    ],
)
def test_what_is_no_window_is_refused(window, slices, message):
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(").replace(")", r"\)")):
        check_window(window, slices)


def test_windows_in_seconds_and_as_timedelta_are_the_same():
    assert check_window(90, 6) == check_window(timedelta(seconds=90), 6) == Window(90_000_000, 6)
    assert read_window(Window(90_000_000, 6).written) == Window(90_000_000, 6)


@pytest.mark.parametrize(
    "text", ["", "5", "60000000/7", "/14", "x/14", "1/14", "99999999999999999/6"]
)
def test_a_damaged_window_is_refused(text):
    with pytest.raises(ConfigurationError, match="window must be microseconds/slices"):
        read_window(text)
