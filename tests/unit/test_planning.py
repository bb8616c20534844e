"""A plan says what a filter then has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomlock import BloomFilter, Window, plan
from bloomlock.errors import ConfigurationError
from bloomlock.planning import COMMAND_S

COUNTS = st.integers(1, 10**11)
RATES = st.floats(1e-6, 0.1)


@pytest.mark.parametrize(
    "shape",
    [
        {"optimize": "memory"},
        {"optimize": "speed", "shards": 3},
        {"window": Window(3600, 6), "optimize": "memory"},
        {"window": Window(3600, 12)},
    ],
    ids=str,
)
def test_a_filter_has_what_was_planned(r, shape):
    planned = plan(200_000, 1e-4, **shape)
    info = BloomFilter("x", 200_000, 1e-4, client=r, **shape).info()
    names = ("num_bits", "num_hashes", "shards")
    assert [getattr(planned, name) for name in names] == [getattr(info, name) for name in names]
    lengths = [*map(r.strlen, r.scan_iter("*:bits"))]
    assert (planned.memory_bytes, {planned.shard_bytes}) == (sum(lengths), set(lengths))
    window = shape.get("window")
    expected = (window.length, window.slices) if window else (None, None)
    assert (planned.window_s, planned.slices) == expected


@given(COUNTS, RATES, st.floats(1e6, 1e12), st.floats(1, 1e6))
def test_the_servers_are_enough_and_not_too_many(capacity, error_rate, server_bytes, items_per_s):
    try:
        made = plan(capacity, error_rate, server_bytes=server_bytes, items_per_s=items_per_s)
    except ConfigurationError as error:
        assert "bytes of one shard" in str(error) or "servers would share" in str(error)
        return
    # Shards lie whole on a server.
    on_one = server_bytes // made.shard_bytes
    assert on_one * made.servers_for_memory >= made.shards > on_one * (made.servers_for_memory - 1)
    busy = items_per_s * made.batch_server_s / made.servers_for_rate
    assert busy <= 0.6 * (1 + 1e-9)
    assert made.servers_for_rate == 1 or busy * made.servers_for_rate > 0.6 * (
        made.servers_for_rate - 1
    )
    assert made.servers == max(made.servers_for_memory, made.servers_for_rate)
    assert made.batch_server_s < made.single_server_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be"),
        ({"error_rate": 2}, "error_rate must be"),
        ({"capacity": 10**14}, r"needs about 2\^52"),
        ({"server_bytes": 0}, "server_bytes must be a number greater than 0 or None, not 0"),
        ({"server_bytes": "64"}, "server_bytes must be"),
        ({"server_bytes": 1000}, r"server_bytes must be at least \d+, the bytes of one shard"),
        ({"items_per_s": -1.0}, "items_per_s must be a number greater than 0 or None, not -1.0"),
        ({"items_per_s": 1e9, "shards": 2}, "give shards=3741 or more"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, not 0"),
        ({"batch_size": True}, "batch_size must be a whole number from 1 on, not True"),
        ({"server_bytes": True}, "server_bytes must be a number greater than 0 or None, not True"),
        ({"shards": 5000}, "shards must be a whole number from 1 to 4096"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ConfigurationError, match=message):
        plan(**{"capacity": 10**6, "error_rate": 1e-6} | options)


def test_a_batch_meets_as_many_shards_as_by_counting(r):
    """What a batch costs beyond its bits is a command for each shard that it meets."""
    at_once, each = (plan(10**6, 1e-6, shards=300, batch_size=b) for b in (10**9, 1))
    assert each.batch_server_s - at_once.batch_server_s == pytest.approx(COMMAND_S, rel=1e-3)
    filter_ = BloomFilter("met", 10**6, client=r, shards=300)
    filter_.add("the first")
    before = r.info("commandstats")["cmdstat_bitfield"]["calls"]
    filter_.add_many([f"{n}" for n in range(400)], route="items")
    met = r.info("commandstats")["cmdstat_bitfield"]["calls"] - before
    planned = plan(10**6, 1e-6, shards=300, batch_size=400).batch_server_s
    expected = (planned - at_once.batch_server_s) * 400 / COMMAND_S
    # Five times the standard deviation of the number of shards met.
    assert met == pytest.approx(expected, abs=5 * 300**0.5 * 0.35)
