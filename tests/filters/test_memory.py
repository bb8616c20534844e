"""MemoryBloomFilter: bit for bit the filter in Redis, and as exact."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from bloomlock import BloomFilter, Growth, MemoryBloomFilter
from bloomlock.errors import CapacityError, ConfigurationError
from bloomlock.filters.fill import FillWatch
from bloomlock.filters.memory import ITEMS_PER_CHUNK
from bloomlock.filters.memory_bits import PythonBits
from bloomlock.filters.options import FilterOptions
from bloomlock.filters.state import FilterState
from bloomlock.keys import DEFAULT_PREFIX, FilterKeys
from bloomlock.spec import RequestedSpec

SHAPES = [
    {"capacity": 2_000},
    {"capacity": 2_000, "seeds": (0, 1, 2**32 - 1)},
    {"capacity": 2_000, "shards": 5, "error_rate": 0.01},
    {"capacity": 2_000, "shards": 3, "seeds": (9, 8, 7, 6)},
    {"capacity": 1, "error_rate": 0.5},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_and_answers_are_those_of_the_filter_in_redis(r, shape):
    remote, local = BloomFilter("x", client=r, **shape), MemoryBloomFilter(**shape)
    for name in ("capacity", "error_rate", "num_bits", "num_hashes", "seeds", "shards"):
        assert getattr(local, name) == getattr(remote, name)
    items = ["", "é", b"\xff\x00", *(f"item {number % 700}" for number in range(1_000))]
    assert [local.add(item) for item in items] == [remote.add(item) for item in items]
    more = [f"item {number}" for number in range(1_500)]
    local.add_many(more)
    remote.add_many(more)
    assert all(map(np.array_equal, local.images(), remote.to_memory().images()))
    probes = [f"item {number}" for number in range(1_000, 3_000)]
    answers = remote.exists_many(probes)
    assert local.exists_many(probes) == answers == [local.exists(probe) for probe in probes]
    theirs, ours = remote.info(), local.info()
    for name in ("bits_set", "estimated_count", "current_error_rate", "fill_ratio"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert len(local) == local.count() == len(remote)
    like = MemoryBloomFilter.like(remote)
    assert len(like) == 0
    like.update([*items, *more])
    assert all(map(np.array_equal, like.images(), local.images()))


def test_filters_are_merged_and_copied():
    first, second = MemoryBloomFilter(1_000, shards=2), MemoryBloomFilter(1_000, shards=2)
    first.update(["a", "b"])
    second.update(["b", "c"])
    both = first.copy()
    both.update(second)
    assert [word in both for word in "abcd"] == [True, True, True, False]
    assert "c" not in first
    assert "a" not in second
    copied = first.copy()
    first.update(second)
    assert "c" in first
    assert "c" not in copied
    second.update(first)
    second.update(second)
    assert all(np.array_equal(a, b) for a, b in zip(second.images(), both.images(), strict=True))
    first.clear()
    assert len(first) == 0
    assert "a" not in first


@pytest.mark.parametrize("shape", [{"shards": 2}, {"error_rate": 0.1}])
def test_only_filters_with_the_same_bits_are_merged(shape):
    with pytest.raises(ConfigurationError, match="only if num_bits"):
        MemoryBloomFilter(1_000).update(MemoryBloomFilter(1_000, **shape))


def test_memory_does_not_grow_with_the_stream():
    made = MemoryBloomFilter(200_000)
    tracemalloc.start()
    try:
        made.update(b"%d" % number for number in range(10 * ITEMS_PER_CHUNK))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Ten chunks as a list of bytes alone would be 8 MB more.
    assert peak < 12_000_000


@pytest.mark.parametrize("add", ["add", "add_many", "update", "add_each"])
def test_of_new_items_as_many_as_the_capacity_are_taken(add, tmp_path):
    made, items = MemoryBloomFilter(2_000, on_full="raise"), list(map(str, range(4_000)))
    made.update(items[:1_000])
    made.save(tmp_path / "half")
    with pytest.raises(CapacityError):
        for _ in [made.add(item) for item in items] if add == "add" else getattr(made, add)(items):
            pass
    assert sum(made.exists_many(items)) in (2_000, 2_001)
    assert made.add_many(items[:2_000]) == [False] * 2_000
    # What was there before is estimated.
    for half in (MemoryBloomFilter.load(tmp_path / "half", on_full="raise"), made.copy()):
        with pytest.raises(CapacityError):
            half.update(items)
        assert sum(half.exists_many(items)) == pytest.approx(2_000, rel=0.02)
    made.clear()
    assert made.add_many(items[2_000:]) == [True] * 2_000


def test_items_one_by_one_are_counted_so_that_a_full_filter_says_so(caplog):
    made = MemoryBloomFilter(2_000)
    for number in range(2_400):
        made.add(str(number))
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "filter '(in memory)' is nearly full",
        "filter '(in memory)' is full",
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"window": 60}, "window="),
        ({"growth": Growth()}, "a filter that grows"),
        ({"native": True}, "strategy='native'"),
    ],
)
def test_what_has_no_like_in_the_process_is_refused(options, why):
    asked = RequestedSpec.check(1000, 0.01, **options).describe()
    with pytest.raises(ConfigurationError, match=f"a filter in the process is not .* {why}"):
        MemoryBloomFilter.of(asked)


# -- forks ----------------------------------------------------------------------------------------


OWNERS = {
    "bits": lambda: PythonBits(RequestedSpec.check(100, 0.01).describe().hasher(), []),
    "fill": lambda: FillWatch("x", refuse=False),
    "state": lambda: FilterState(FilterKeys("x", DEFAULT_PREFIX), FilterOptions(), None),
}


@pytest.mark.parametrize("what", OWNERS)
def test_a_lock_held_at_the_fork_is_free_in_the_child_and_held_in_the_parent(what):
    owner = OWNERS[what]()
    with owner._lock:
        child = os.fork()
        if not child:
            os._exit(0 if owner._lock.acquire(blocking=False) else 3)
        assert os.waitpid(child, 0)[1] == 0
        assert owner._lock.locked()


IMPORTING = """
import os, signal, sys, threading
from bloomlock import MemoryBloomFilter

class Slow:
    def find_spec(self, name, *_):
        if name == "numpy" and not begun.is_set():
            begun.set()
            forks.wait(1)

begun, forks = threading.Event(), threading.Event()
sys.meta_path.insert(0, Slow())
use = lambda: MemoryBloomFilter(100).add_many(["a", "b"])
user = threading.Thread(target=use)
user.start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    use()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
user.join()
"""


def test_a_fork_waits_for_the_import_of_numpy():
    subprocess.run([sys.executable, "-c", IMPORTING], check=True, timeout=200)
