"""The arithmetic of time windows: what is remembered for how long, sizes and their error rate."""

from __future__ import annotations

import math
import struct
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock.slices import MAX_SLICES, MIN_SLICES, Ring, Window, live_slices
from bloomlock.spec import RequestedSpec

DAY_US = 86_400 * 10**6
SLICES = range(MIN_SLICES, MAX_SLICES + 1)
windows = st.builds(Ring, st.integers(3_000_000, 3650 * DAY_US), st.sampled_from(SLICES))


def described(capacity, error_rate, slices):
    window = Window(timedelta(days=7), slices)
    made = RequestedSpec.check(capacity, error_rate, window=window).describe()
    assert len(made.slices) == slices + 1
    return made.size, made.slices[0].capacity


@given(windows, st.integers(10**15, 4 * 10**15), st.integers(0, 10**10))
def test_an_item_is_remembered_for_the_window_and_one_slice(window, added_us, later_us):
    """Whatever was added since: nothing depends on a client that adds in time."""
    _, ring = window.slices_for(1000, 1e-3, 9, 1)
    epoch = added_us // window.epoch_us
    added_to = ring[epoch % len(ring)]
    for after_us in (later_us, window.length_us, window.length_us + window.epoch_us + 1):
        now_us = added_us + after_us
        now = now_us // window.epoch_us
        for newest in {epoch, max(epoch, now - 1), now}:
            # That of the item may have gone to a later epoch.
            is_kept = newest < epoch + len(ring)
            start = bytes(8) + struct.pack(">QH6x", newest, is_kept << epoch % len(ring))
            is_live = added_to in live_slices(ring, window.epoch_us, start, now_us)
            if after_us <= window.length_us:
                assert is_live
            if after_us >= window.epoch_us * (window.slices + 1):
                assert not is_live
    longest = window.length_us * (1 + 1 / window.slices) + window.slices + 1
    assert window.epoch_us * (window.slices + 1) <= longest


@pytest.mark.parametrize("slices", [2, 6, 12])
@pytest.mark.parametrize("error_rate", [1e-3, 1e-6])
def test_the_size_keeps_the_rate_and_is_not_too_large(slices, error_rate):
    size, items = described(100_000, error_rate, slices)
    assert size.shards == 1
    assert (slices + 1) * items >= 100_000
    fill = -math.expm1(-size.num_hashes * items / size.shard_bits)
    assert (slices + 1) * fill**size.num_hashes <= error_rate * 1.0001
    fewer = -math.expm1(-size.num_hashes * items / (0.999 * size.shard_bits))
    assert (slices + 1) * fewer**size.num_hashes > error_rate
