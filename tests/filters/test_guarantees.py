"""The cells of the README's guarantee table: forbidden commands, and what does not go together."""

from __future__ import annotations

import pytest
import redis
from strategies import STRATEGIES

from bloomlock import BloomFilter
from bloomlock.errors import ConfigurationError


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_eval_is_forbidden(restricted, strategy):
    limited = restricted("-@scripting")
    made = BloomFilter("x", 1000, client=limited, strategy=strategy)
    if strategy in ("lua", "lock"):
        with pytest.raises((redis.exceptions.NoPermissionError, ConfigurationError), match="eval"):
            made.add("a")
        return
    assert made.add("a") is True
    assert made.add_many(["a", "b", "b"]) == [False, True, False]
    assert made.exists("a")
    made.clear()
    assert not made.exists("a")


def test_filters_with_slices_need_scripts(r, restricted):
    limited = restricted("-@scripting")
    with pytest.raises(ConfigurationError, match="needs a server that runs scripts"):
        BloomFilter("x", 1000, client=limited, on_full="grow")
    assert r.keys() == []
    BloomFilter("x", 1000, client=r, window=600)
    with pytest.raises(ConfigurationError, match="needs a server that runs scripts"):
        BloomFilter.open("x", client=limited)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_bitfield_is_forbidden(restricted, strategy):
    limited = restricted("-bitfield", "-bitfield_ro")
    made = BloomFilter("x", 1000, client=limited, strategy=strategy)
    if strategy == "atomic":
        with pytest.raises(redis.exceptions.NoPermissionError):
            made.add("a")
        return
    assert made.add("a") is True
    assert made.add_many(["a", "b", "b"]) == [False, True, False]
    assert made.exists("b")


@pytest.mark.parametrize("strategy", ["transaction", "lock", "pipeline"])
def test_other_strategies_refuse_a_filter_with_discarded_items(r, valkey, strategy):
    """They would answer "seen" for an item that was discarded."""
    made = BloomFilter("x", 1000, client=valkey)
    other = BloomFilter("x", 1000, client=valkey, strategy=strategy)
    made.add_many(["a", "b"])
    assert other.exists("a")
    made.discard("a")
    for attempt in (
        lambda: other.exists("a"),
        lambda: other.add("a"),
        lambda: other.exists_many(["a", "b"]),
        lambda: BloomFilter.open("x", client=valkey, strategy=strategy),
    ):
        with pytest.raises(ConfigurationError, match="'atomic' or 'lua' for a filter with"):
            attempt()
    made.clear()
    other.reattach()
    assert other.add("a")
