"""What a strategy or a kind of filter does not support is refused with one sentence."""

from __future__ import annotations

import pytest

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import ConfigurationError

KINDS = {
    "window=": {"window": 3600},
    "a filter that grows": {"on_full": "grow"},
    "with discarded items": {},
}
FEATURES = {
    "discard": lambda made, _: made.discard("a"),
    "claims": lambda made, _: made.claim("c", renew=False).abandon(),
    "run_script": lambda made, _: made.run_script("return 1"),
    "bitmap": lambda made, _: made.add_many(["a"], route="bitmap"),
    "rebuild": lambda made, _: made.rebuild(["a"]),
    "to_memory": lambda made, _: made.to_memory(),
    "from memory": lambda made, _: made.update(MemoryBloomFilter.like(made)),
    "from a filter": lambda made, other: made.update(other),
    "copy": lambda made, _: made.copy("y").delete(),
}
WITHOUT = {
    "window=": {"bitmap", "rebuild", "to_memory", "from memory", "from a filter"},
    "a filter that grows": {"to_memory", "from memory", "from a filter"},
    "with discarded items": {"to_memory", "from memory", "from a filter"},
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_some_extras_are_for_some_kinds_alone(r, valkey, kind, feature):
    made = BloomFilter("x", 1000, client=valkey, **KINDS[kind])
    other = BloomFilter("z", 1000, client=valkey)
    made.add("a"), made.add("b")
    if "discarded" in kind:
        made.discard("b")
    if feature not in WITHOUT[kind]:
        FEATURES[feature](made, other)
        return
    with pytest.raises(ConfigurationError) as caught:
        FEATURES[feature](made, other)
    assert "\n" not in str(caught.value)
    assert made.exists_many(["a", "b"]) == [True, "discarded" not in kind]


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
