"""The near-cache by itself: what it keeps, and until when it answers."""

from __future__ import annotations

import gc
import math
import random
import sys
import threading
import weakref

import pytest
from servers import wait_until

from bloomlock.errors import ConfigurationError
from bloomlock.filters import near_cache
from bloomlock.filters.near_cache import NearCaching
from bloomlock.runtime.clock import boot_clock


class Clock:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class InPython(near_cache.NearCache):
    knows = near_cache.PythonKept.knows


@pytest.fixture(params=["compiled", "python"])
def clock(request, monkeypatch):
    """A clock for near-caches that look up with the compiled core, and without."""
    if request.param == "python":
        monkeypatch.setattr(near_cache, "NearCache", InPython)
    elif near_cache.Kept is near_cache.PythonKept:
        pytest.skip("the compiled core is not there, or has no clock here")
    return Clock()


def start(clock, size=100, max_staleness=1.0):
    near = NearCaching.check(size, max_staleness, clock).start(77)
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
        assert near.count() <= 2 * size
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
    assert near.count() == 2


def test_it_answers_until_the_deadline(clock):
    near = NearCaching.check(10, 0.5, clock).start(77)
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
    near = NearCaching.check(10, 1000.0, boot_clock).start(77)
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


def test_an_error_of_the_clock_passes_through(clock):
    def broken():
        raise ZeroDivisionError

    near = start(clock)
    near.keep("a")
    near._now = broken
    assert not near.knows("b")
    with pytest.raises(ZeroDivisionError):
        near.knows("a")


def test_a_cache_in_a_circle_is_freed(clock):
    near = start(clock)
    near.circle = near._now = Circle(near)
    watched = weakref.ref(near)
    del near
    gc.collect()
    assert watched() is None


class Circle:
    def __init__(self, near):
        self.near = near

    def __call__(self):
        return 0.0


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


def test_threads_keep_together(clock):
    size = 64
    near = start(clock, size)

    def work(mine: int) -> None:
        for number in range(3000):
            near.keep(f"{mine} {number}")
            near.knows(f"{mine} {number - size}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    sys.setswitchinterval(interval)
    assert size <= near.count() <= 2 * size + 4


@pytest.mark.parametrize("size", [-1, 1.5, True, "10", None, [], math.inf])
def test_a_size_that_is_none(clock, size):
    with pytest.raises(ConfigurationError, match="near_cache must be a whole number of items"):
        NearCaching.check(size, 1.0, clock)


@pytest.mark.parametrize("seconds", [0, -1, True, "1", None, math.inf, math.nan, []])
def test_a_staleness_that_is_none(clock, seconds):
    for size in (0, 10):
        with pytest.raises(ConfigurationError, match=r"max_staleness must be a number of seconds"):
            NearCaching.check(size, seconds, clock)


def test_none_by_default(clock):
    assert NearCaching.check(0, 1.0, clock) is None


# -- epochs of a time window ---------------------------------------------------------------------


def start_in_window(clock, *notes):
    near = NearCaching.check(100, 50.0, clock).start(77)
    for note in notes:
        near.note_epoch(*note)
    near.keep("a")
    near.confirm(clock())
    return near


@pytest.mark.parametrize("first", [0, 1])
def test_it_answers_until_the_first_end_of_the_epochs_of_its_shards(clock, first):
    """The servers of a cluster have clocks of their own."""
    ends = [clock.now + 10, clock.now + 20]
    near = start_in_window(clock, ("x", 7, ends[first]), ("y", 8, ends[1 - first]))
    clock.now += 9.5
    near.confirm(clock())
    assert near.knows("a")
    assert near.known(["a", "b"]) == [True, False]
    assert not near.is_over
    clock.now += 0.5
    assert not near.knows("a")
    assert near.is_over
    near.confirm(clock())
    assert not near.knows("a")
    assert near.known(["a"]) == [False]


def test_a_nearer_end_counts_at_once_and_a_later_one_does_not(clock):
    near = start_in_window(clock, ("x", 7, clock.now + 10))
    near.note_epoch("x", 7, clock.now + 15)
    clock.now += 2
    near.note_epoch("x", 7, clock.now + 3)
    clock.now += 2.9
    assert near.knows("a")
    clock.now += 0.1
    assert not near.knows("a")


@pytest.mark.parametrize("epoch", [6, 8])
def test_it_ends_when_a_shard_answers_in_another_epoch(clock, epoch):
    near = start_in_window(clock, ("x", 7, clock.now + 10), ("y", 7, clock.now + 10))
    assert near.knows_epoch("x")
    assert not near.knows_epoch("z")
    assert near.knows("a")
    near.note_epoch("y", epoch, clock.now + 20)
    near.confirm(clock())
    near.keep("b")
    assert near.is_over
    assert near.known(["a", "b"]) == [False, False]


def test_an_end_that_is_over_lets_nothing_be_answered(clock):
    near = start_in_window(clock, ("x", 7, clock.now))
    assert not near.knows("a")
    assert near.is_over


def test_what_confirms_it_does_not_put_off_an_end_that_is_noted_meanwhile(clock):
    near = start_in_window(clock, ("x", 7, clock.now + 40))
    end = clock.now + 10
    other = threading.Thread(target=near.note_epoch, args=("y", 7, end))

    class Interrupted(float):
        """A time; another thread comes between the look at the end and what follows from it."""

        def __add__(self, seconds):
            return Interrupted(float(self) + seconds)

        def __gt__(self, until):
            other.start()
            other.join(0.05)
            return float(self) > until

    near.confirm(Interrupted(clock()))
    other.join()
    assert near._answers_until == end
