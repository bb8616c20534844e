"""The mathematics of filters that grow."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from rates import rate_of

from bloomlock.errors import ConfigurationError
from bloomlock.sizing import FIRST_BIT, estimate_deviation
from bloomlock.slices import (
    MAX_GROWTH,
    MAX_STRING_BITS,
    MOST_SLICES,
    Growth,
    compound_error_rate,
)
from bloomlock.spec import RequestedSpec

CAPACITIES = st.integers(1, 10**7)
RATES = st.floats(1e-9, 0.3)
FACTORS = st.integers(2, MAX_GROWTH)


def described(capacity, rate, **options):
    growth = Growth(**{name: options.pop(name) for name in ("factor", "up_to") & options.keys()})
    return RequestedSpec.check(capacity, rate, growth=growth, **options).describe()


@given(CAPACITIES, RATES, FACTORS, st.integers(1, 20))
def test_the_rates_of_all_slices_at_their_room_keep_the_rate_of_the_filter(
    capacity, rate, factor, shards
):
    found = described(capacity, rate, factor=factor, shards=shards)
    rates = [rate_of(part.room, part.bits, part.num_hashes) for part in found.slices]
    assert sum(rates) <= rate
    assert compound_error_rate(rates) <= rate
    assert sum(part.error_rate for part in found.slices) < rate


@given(CAPACITIES, RATES, st.integers(1, 20))
def test_a_slice_holds_its_items_before_it_is_full(capacity, rate, shards):
    """Five deviations: of the number of items in a shard, and of the estimate."""
    for part in described(capacity, rate, shards=shards).slices:
        mean = part.capacity / shards
        spread = math.sqrt(mean * (1 - 1 / shards))
        estimated = estimate_deviation(mean, part.bits, part.num_hashes, part.bits)
        assert part.full_at >= mean + 4.5 * math.hypot(spread, min(estimated, math.sqrt(mean) / 2))
        assert part.room >= 16 / 15 * part.full_at * 0.999


@given(CAPACITIES, RATES, FACTORS)
def test_slices_lie_behind_one_another_and_begin_at_bytes(capacity, rate, factor):
    found = described(capacity, rate, factor=factor)
    assert found.size.shard_bits == found.slices[0].bits
    assert found.slices[0].first == FIRST_BIT
    for one, following in zip(found.slices, found.slices[1:], strict=False):
        assert following.first == 8 * one.end_byte
        assert following.first % 8 == 0
        assert 0 <= following.first - (one.first + one.bits) < 8
        assert following.capacity == factor * one.capacity
    assert found.slices[-1].first + found.slices[-1].bits <= MAX_STRING_BITS
    assert len(found.slices) <= MOST_SLICES


@given(st.integers(1, 10**6), RATES, FACTORS, st.integers(1, 1000))
def test_it_holds_up_to_items_and_has_no_slice_too_many(capacity, rate, factor, times):
    up_to = capacity * times
    try:
        found = described(capacity, rate, factor=factor, up_to=up_to)
    except ConfigurationError as error:
        assert "up_to must be at most" in str(error)
        return
    assert found.most_items == up_to
    assert found.most_items - found.slices[-1].capacity < up_to
