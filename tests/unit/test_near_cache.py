"""The near-cache by itself: what it keeps, and until when it answers."""

from __future__ import annotations

import math
import random
import threading

import pytest
from servers import wait_until

from bloomlock.filters.near_cache import KeptAnswers, NearCache
from bloomlock.runtime.clock import boot_clock


class Clock:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def start(clock, size=100, max_staleness=1.0):
    near = KeptAnswers(77, NearCache(size, max_staleness), clock)
    near.confirm(clock())
    return near


def kept(near):
    """What is kept; asking `knows` would be a use."""
    keys = near._young | near._old
    return {key[0] if isinstance(key, tuple) else key for key in keys}


@pytest.mark.parametrize("size", [1, 2, 3, 10, 100])
def test_at_least_the_last_n_are_kept_and_at_most_twice_as_many(clock, size, seed):
    chance = random.Random(seed)
    near = start(clock, size)
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


def test_only_what_was_kept_is_known(clock):
    near = start(clock)
    near.keep("a")
    assert near.knows("a")
    assert not near.knows(b"a")
    assert not near.knows("b")


def test_other_objects_are_never_known(clock):
    class Text(str):
        __slots__ = ()

        def __eq__(self, other):
            raise AssertionError

        __hash__ = str.__hash__

    near = start(clock)
    near.keep_many(["a", b"a"])
    for other in (Text("a"), bytearray(b"a"), 1, None, ["a"], {}, float("nan")):
        near.keep(other)
        assert not near.knows(other)
    assert len(near._young | near._old) == 2


def test_it_answers_until_the_deadline(clock):
    near = KeptAnswers(77, NearCache(10, 0.5), clock)
    near.keep("a")
    assert not near.knows("a")
    near.confirm(clock())
    clock.now += 0.499
    assert near.knows("a")
    clock.now += 0.001
    assert not near.knows("a")
    near.confirm(clock() - 0.4)
    assert near.knows("a")
    clock.now += 0.1
    assert not near.knows("a")


def test_one_in_doubt_answers_after_the_next_confirmation(clock):
    near = start(clock)
    near.keep("a")
    near.doubt()
    assert not near.knows("a")
    near.confirm(clock())
    assert near.knows("a")


def test_one_that_ended_answers_nothing_any_more(clock):
    near = start(clock)
    near.keep("a")
    near.end()
    assert near.is_over
    near.confirm(clock())
    near.keep("b")
    assert not near.knows("a")
    assert not near.knows("b")
    near.confirm(math.inf)
    assert not near.knows("a")


def test_the_clock_of_the_machine_counts(clock):
    near = KeptAnswers(77, NearCache(10, 1000.0), boot_clock)
    near.keep_many(["a", b"a"])
    assert not near.knows("a")
    near.confirm(boot_clock() - 1001)
    assert not near.knows("a")
    near.confirm(boot_clock() - 1)
    assert near.knows("a")
    assert near.knows(b"a")
    near.end()
    assert not near.knows("a")


def test_a_use_keeps_an_item(clock):
    near = start(clock, 2)
    for number in range(20):
        near.keep_many(["a"] if number == 0 else [str(number)])
        assert near.knows("a")
    assert kept(near) <= {"a", *map(str, range(16, 20))}


def test_a_batch_is_kept_and_known_as_its_items_are(clock):
    near = start(clock, 4)
    batch = ["a", b"a", 1, "b", None, b"b", ["c"]]
    near.keep_many(batch)
    assert kept(near) == {"a", b"a", "b", b"b"}
    assert near.known(batch) == [near.knows(item) for item in batch]
    assert near.known([b"a", b"c"]) == [True, False]


def test_a_thread_that_comes_late_to_a_full_set_loses_nothing(clock):
    near = start(clock, 3)
    near.keep_many(["a", "b"])
    full = near._young
    late = threading.Thread(target=near.keep, args=("c",))
    with near._lock:
        late.start()
        wait_until(lambda: "c" in full)
        # What another thread does that found the same set full.
        near._old, near._young = full, {"d"}
    late.join(60)
    assert kept(near) == set("abcd")
