"""Every parameter of a filter is checked before anything is sent, and its error is one sentence."""

from __future__ import annotations

import inspect
import math
from datetime import timedelta

import flat_options
import pytest

from bloomlock import AsyncBloomFilter, BloomFilter, MemoryBloomFilter
from bloomlock.errors import ConfigurationError

NOWHERE = "unix:///nowhere/at/all.sock"
"""A server that would be the complaint, were it asked first."""
CAPACITY = "capacity must be a whole number of items from 1 to "
ERROR_RATE = "error_rate must be a number from 1e-15 "
SHARDS = "shards must be a whole number from 1 to 4096"
NUM_HASHES = "num_hashes must be a whole number from 1 to 64 or None, not "
SEEDS = "seeds must be "
KEY = "key must be 16 to 64 bytes"
SIZE = "near_cache must be a whole number of items, 0 for none, not "
STALENESS = "max_staleness must be a number of seconds above 0, not "
WINDOW = "window must be a timedelta or seconds"
GROWS = {"on_full": "grow"}
GROWTH = "growth must be a whole number from 2 to 64"
UP_TO = "up_to must be a whole number of items from the capacity, 1000"
WITH_WINDOW = {"window": 60}
EVERYWHERE = [
    *(("capacity", value, CAPACITY) for value in (0, -1, 1.5, "10", None, True, math.nan)),
    ("capacity", 10**400, "capacity must be "),
    *(("error_rate", value, ERROR_RATE) for value in (0, -0.1, 1.0, 2, math.nan, math.inf)),
    *(("error_rate", value, ERROR_RATE) for value in ("0.1", None, True)),
    *(("shards", value, SHARDS) for value in (0, 4097, 1.0, "2", True)),
    *(("num_hashes", value, NUM_HASHES) for value in (0, 65, 1.5, "3", True)),
    *(("seeds", value, SEEDS) for value in ((), [1, 1], [-1], [2**32], ["a"], "12", 5, [True])),
    ("seeds", range(65), SEEDS),
    ("optimize", "size", "optimize must be 'memory', 'balanced', 'speed' or None, not 'size'"),
    *(("key", value, KEY) for value in (b"short", "x" * 65, 5, False, "\ud800" * 9)),
    ("on_full", "burst", "on_full must be 'warn' or 'raise'"),
]
"""Of filters on a server and in the process."""
ON_SERVERS = [
    *(("name", value, "name must be a text") for value in ("", None, 3, b"x", "x" * 1025)),
    ("name", "\ud800", "name must be a text that has a UTF-8 form"),
    *(("prefix", value, "prefix must be a text without braces") for value in ("{", "a}", None)),
    ("strategy", "hope", "strategy must be one of 'atomic', 'lua', 'transaction'"),
    ("on_lost", "weep", "on_lost must be 'raise' or 'recreate', not 'weep'"),
    ("on_unknown", "old", "on_unknown must be 'raise' or 'new', not 'old'"),
    *(("near_cache", value, SIZE) for value in (-1, 1.5, True, "10", None, [], math.inf)),
    *(("max_staleness", value, STALENESS) for value in (0, -1, True, "1", None, math.inf)),
    ("max_staleness", math.nan, STALENESS),
    *(("window", value, WINDOW) for value in (0, -5, timedelta(0), True, "7d", math.nan)),
    ("window", timedelta(days=4000), "at most 3650 days"),
    ("client", 5, "client must be"),
]
TOGETHER = [
    ({"window": 60, "slices": 1}, "slices must be a whole number from 2 to 12 or None, not 1"),
    ({"window": 60, "slices": 13}, "slices must be a whole number from 2 to 12 or None, not 13"),
    ({"window": 60, "slices": True}, "not True"),
    ({"window": 1, "slices": 12}, "at least 1.2 s with 12 slices"),
    (WITH_WINDOW | {"refresh": 2}, "refresh must be True or False, not 2"),
    ({"window": 0, "refresh": True}, "window must be a timedelta or seconds"),
    ({"key": "x" * 16, "seeds": [1]}, "seeds must be None with a key"),
    ({"num_hashes": 2, "seeds": [1]}, "num_hashes must be None with seeds"),
    ({"optimize": "speed", "seeds": [1]}, "optimize must be None with seeds"),
    ({"optimize": "speed", "num_hashes": 3}, "optimize must be None with num_hashes"),
    *(({"growth": value}, GROWTH) for value in (1, 65, 2.5, True)),
    *(({"up_to": value}, UP_TO) for value in (999, 1e6, True)),
    *(({"up_to": 10**n}, "up_to must be at most") for n in (12, 14)),
    ({"up_to": 10**9, "shards": 1}, "up_to must be at most"),
    (GROWS | {"seeds": [1, 2]}, "seeds must be None with on_full='grow'"),
    (WITH_WINDOW | {"on_full": "raise"}, "on_full must be 'warn' with window="),
    ({"capacity": 10**9, "shards": 1}, "1 shards hold"),
    ({"capacity": 10**13}, r"needs about 2\^"),
    ({"nonsense": 1}, "nonsense"),
]


def refuse(make, says, *arguments, **options):
    with pytest.raises((ConfigurationError, TypeError), match=says) as refused:
        make(*arguments, **options)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def make_shared(given):
    options = {"name": "x", "capacity": 1000, "error_rate": 1e-6, "client": NOWHERE}
    return BloomFilter(**options | flat_options.given(given))


@pytest.mark.parametrize(("parameter", "value", "says"), EVERYWHERE + ON_SERVERS, ids=ascii)
def test_a_parameter_that_is_not_usable(parameter, value, says):
    refuse(make_shared, says, {parameter: value})


@pytest.mark.parametrize(("options", "says"), TOGETHER, ids=ascii)
def test_parameters_that_do_not_go_together(options, says):
    refuse(make_shared, says, options)


@pytest.mark.parametrize(("parameter", "value", "says"), EVERYWHERE, ids=ascii)
def test_a_filter_in_the_process_refuses_the_same(parameter, value, says):
    options = {"capacity": 1000, "error_rate": 1e-6, parameter: value}
    refuse(MemoryBloomFilter, says, **options)


@pytest.mark.parametrize("parameter", ["strategy", "near_cache", "on_lost", "prefix", "key"])
def test_open_refuses_the_same(parameter):
    value, says = next(
        (value, says) for p, value, says in EVERYWHERE + ON_SERVERS if p == parameter
    )
    refuse(BloomFilter.open, says, "x", client=NOWHERE, **{parameter: value})


@pytest.mark.parametrize("face", [BloomFilter, AsyncBloomFilter, MemoryBloomFilter])
@pytest.mark.parametrize("method", ["__init__", "open", "rebuild", "import_file"])
def test_a_signature_shows_each_parameter_and_its_default(face, method):
    if (function := getattr(face, method, None)) is None:
        return
    parameters = inspect.signature(function).parameters.values()
    assert len(parameters) - (method == "__init__") <= 16
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters)


def test_no_message_shows_a_key():
    secret = b"thirty-two bytes of a secret key"
    for options in ({"key": secret, "seeds": [1]}, {"key": secret * 3}, {"key": secret.decode()}):
        with pytest.raises(Exception, match=".") as caught:
            make_shared(options)
        assert "thirty-two" not in f"{caught.value} {caught.value.__cause__}"
