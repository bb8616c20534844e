"""What the near-cache keeps."""

from __future__ import annotations

import random

import pytest

from bloomlock.filters.near_cache import KeptAnswers, NearCache


def start(size):
    near = KeptAnswers(77, NearCache(size), lambda: 1000.0)
    near.validate(1000.0)
    return near


def kept(near):
    """What is kept; asking `knows` would be a use."""
    keys = near._young | near._old
    return {key[0] if isinstance(key, tuple) else key for key in keys}


@pytest.mark.parametrize("size", [1, 2, 3, 10, 100])
def test_at_least_the_last_n_are_kept_and_at_most_twice_as_many(size, seed):
    chance = random.Random(seed)
    near = start(size)
    used: dict[str | bytes, None] = {}
    for _ in range(2000):
        number = int(chance.paretovariate(0.5)) % (4 * size)
        item = str(number) if number % 2 else b"%d" % number
        if not near.knows(item):
            near.keep(item)
        used.pop(item, None)
        used[item] = None
        assert len(near._young | near._old) <= 2 * size
        assert kept(near) >= set(list(used)[-size:])


def test_other_objects_are_never_known():
    class Text(str):
        __slots__ = ()

        def __eq__(self, other):
            raise AssertionError

        __hash__ = str.__hash__

    near = start(100)
    near.keep_many(["a", b"b"])
    assert [near.knows(item) for item in ("a", b"a", "b", b"b")] == [True, False, False, True]
    for other in (Text("a"), bytearray(b"a"), 1, None, ["a"], {}, float("nan")):
        near.keep(other)
        assert not near.knows(other)
    assert len(near._young | near._old) == 2
